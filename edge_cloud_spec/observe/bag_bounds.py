"""What a bag may ask for, which may be a stranger's; what asks for more is refused before."""

MAX_BLOCK = 1 << 26  # bytes of a record of an MCAP file, and of a block of it when inflated
MAX_AT_ONCE = 2 * MAX_BLOCK  # bytes of blocks of one time, which are held together
MAX_INFLATED = 1 << 29  # bytes that all blocks of a file may inflate to, or
MAX_RATIO = 64  # times the file, whichever is more
MAX_TOPICS = 4096
MAX_DEFINITIONS = 1 << 22  # bytes that define types and topics
MAX_METADATA = 1 << 21  # bytes of metadata.yaml
MAX_REPEATED = 4096  # strings or messages in an array of fixed length
MAX_PARTS = 1 << 22  # bytes of a message that has lists of strings or messages
