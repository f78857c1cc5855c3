from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Digest(_message.Message):
    __slots__ = ("length", "hash")
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    length: int
    hash: int
    def __init__(self, length: _Optional[int] = ..., hash: _Optional[int] = ...) -> None: ...

class Policy(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "seed")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("protocol", "nonce", "instruction", "jpeg", "order", "policy", "rule", "payload", "tokenizer_digest", "draft_identity", "spec_digest", "max_tokens", "draft_length", "capabilities")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    JPEG_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DRAFT_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    SPEC_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    nonce: int
    instruction: str
    jpeg: bytes
    order: str
    policy: Policy
    rule: str
    payload: str
    tokenizer_digest: bytes
    draft_identity: str
    spec_digest: bytes
    max_tokens: int
    draft_length: int
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, protocol: _Optional[int] = ..., nonce: _Optional[int] = ..., instruction: _Optional[str] = ..., jpeg: _Optional[bytes] = ..., order: _Optional[str] = ..., policy: _Optional[_Union[Policy, _Mapping]] = ..., rule: _Optional[str] = ..., payload: _Optional[str] = ..., tokenizer_digest: _Optional[bytes] = ..., draft_identity: _Optional[str] = ..., spec_digest: _Optional[bytes] = ..., max_tokens: _Optional[int] = ..., draft_length: _Optional[int] = ..., capabilities: _Optional[_Iterable[str]] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("base", "tokens", "parents", "dense", "round")
    BASE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    base: Digest
    tokens: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    dense: bytes
    round: int
    def __init__(self, base: _Optional[_Union[Digest, _Mapping]] = ..., tokens: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ..., dense: _Optional[bytes] = ..., round: _Optional[int] = ...) -> None: ...

class Generate(_message.Message):
    __slots__ = ("base", "speculative")
    BASE_FIELD_NUMBER: _ClassVar[int]
    SPECULATIVE_FIELD_NUMBER: _ClassVar[int]
    base: Digest
    speculative: bool
    def __init__(self, base: _Optional[_Union[Digest, _Mapping]] = ..., speculative: bool = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("session", "base")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    session: str
    base: Digest
    def __init__(self, session: _Optional[str] = ..., base: _Optional[_Union[Digest, _Mapping]] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClientMessage(_message.Message):
    __slots__ = ("open", "draft", "generate", "resume", "close")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    open: Open
    draft: Draft
    generate: Generate
    resume: Resume
    close: Close
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., draft: _Optional[_Union[Draft, _Mapping]] = ..., generate: _Optional[_Union[Generate, _Mapping]] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("session", "spec", "base", "capabilities")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    session: str
    spec: bytes
    base: Digest
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session: _Optional[str] = ..., spec: _Optional[bytes] = ..., base: _Optional[_Union[Digest, _Mapping]] = ..., capabilities: _Optional[_Iterable[str]] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("base", "path", "token", "tokens", "finish", "round", "verify_us", "queue_us", "drafted", "draft_us")
    BASE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    VERIFY_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    base: Digest
    path: _containers.RepeatedScalarFieldContainer[int]
    token: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    finish: str
    round: int
    verify_us: int
    queue_us: int
    drafted: int
    draft_us: int
    def __init__(self, base: _Optional[_Union[Digest, _Mapping]] = ..., path: _Optional[_Iterable[int]] = ..., token: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., finish: _Optional[str] = ..., round: _Optional[int] = ..., verify_us: _Optional[int] = ..., queue_us: _Optional[int] = ..., drafted: _Optional[int] = ..., draft_us: _Optional[int] = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("code", "text")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    code: str
    text: str
    def __init__(self, code: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class ServerMessage(_message.Message):
    __slots__ = ("opened", "verdict", "fault")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    verdict: Verdict
    fault: Fault
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., fault: _Optional[_Union[Fault, _Mapping]] = ...) -> None: ...
