from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Open(_message.Message):
    __slots__ = ("protocol", "nonce", "policy", "rule", "payload", "tokenizer_digest", "draft_identity", "spec_digest", "max_tokens", "draft_length", "split", "distinct", "predictions", "key", "secret", "oldest_protocol", "verified", "preset", "generate", "lookup", "messages", "after", "candidates", "whole", "continues", "log_probs")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DRAFT_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    SPEC_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    DISTINCT_FIELD_NUMBER: _ClassVar[int]
    PREDICTIONS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    OLDEST_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    PRESET_FIELD_NUMBER: _ClassVar[int]
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    LOOKUP_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    CONTINUES_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    nonce: int
    policy: Policy
    rule: str
    payload: str
    tokenizer_digest: bytes
    draft_identity: str
    spec_digest: bytes
    max_tokens: int
    draft_length: int
    split: Split
    distinct: bool
    predictions: bool
    key: bytes
    secret: bytes
    oldest_protocol: int
    verified: _containers.RepeatedScalarFieldContainer[int]
    preset: str
    generate: Generate
    lookup: bool
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    after: bytes
    candidates: _containers.RepeatedScalarFieldContainer[str]
    whole: bool
    continues: bool
    log_probs: str
    def __init__(self, protocol: _Optional[int] = ..., nonce: _Optional[int] = ..., policy: _Optional[_Union[Policy, _Mapping]] = ..., rule: _Optional[str] = ..., payload: _Optional[str] = ..., tokenizer_digest: _Optional[bytes] = ..., draft_identity: _Optional[str] = ..., spec_digest: _Optional[bytes] = ..., max_tokens: _Optional[int] = ..., draft_length: _Optional[int] = ..., split: _Optional[_Union[Split, _Mapping]] = ..., distinct: bool = ..., predictions: bool = ..., key: _Optional[bytes] = ..., secret: _Optional[bytes] = ..., oldest_protocol: _Optional[int] = ..., verified: _Optional[_Iterable[int]] = ..., preset: _Optional[str] = ..., generate: _Optional[_Union[Generate, _Mapping]] = ..., lookup: bool = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., after: _Optional[bytes] = ..., candidates: _Optional[_Iterable[str]] = ..., whole: bool = ..., continues: bool = ..., log_probs: _Optional[str] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("role", "parts")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    role: str
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, role: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("text", "picture")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PICTURE_FIELD_NUMBER: _ClassVar[int]
    text: str
    picture: Picture
    def __init__(self, text: _Optional[str] = ..., picture: _Optional[_Union[Picture, _Mapping]] = ...) -> None: ...

class Picture(_message.Message):
    __slots__ = ("digest", "data", "width", "height")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    data: bytes
    width: int
    height: int
    def __init__(self, digest: _Optional[bytes] = ..., data: _Optional[bytes] = ..., width: _Optional[int] = ..., height: _Optional[int] = ...) -> None: ...

class Policy(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "seed", "grammar")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    grammar: str
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ..., grammar: _Optional[str] = ...) -> None: ...

class Split(_message.Message):
    __slots__ = ("residual", "top_k", "tail")
    RESIDUAL_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    residual: str
    top_k: int
    tail: int
    def __init__(self, residual: _Optional[str] = ..., top_k: _Optional[int] = ..., tail: _Optional[int] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("tokens", "parents", "rows", "round", "values", "resampled", "open_at", "reply_timeout_ms", "hint", "looked_up", "without_exits")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    RESAMPLED_FIELD_NUMBER: _ClassVar[int]
    OPEN_AT_FIELD_NUMBER: _ClassVar[int]
    REPLY_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    LOOKED_UP_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_EXITS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    rows: Rows
    round: int
    values: bytes
    resampled: int
    open_at: int
    reply_timeout_ms: int
    hint: bool
    looked_up: int
    without_exits: bool
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ..., rows: _Optional[_Union[Rows, _Mapping]] = ..., round: _Optional[int] = ..., values: _Optional[bytes] = ..., resampled: _Optional[int] = ..., open_at: _Optional[int] = ..., reply_timeout_ms: _Optional[int] = ..., hint: bool = ..., looked_up: _Optional[int] = ..., without_exits: bool = ...) -> None: ...

class Generate(_message.Message):
    __slots__ = ("speculative", "may_speculate")
    SPECULATIVE_FIELD_NUMBER: _ClassVar[int]
    MAY_SPECULATE_FIELD_NUMBER: _ClassVar[int]
    speculative: bool
    may_speculate: bool
    def __init__(self, speculative: bool = ..., may_speculate: bool = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("session", "secret")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    session: str
    secret: bytes
    def __init__(self, session: _Optional[str] = ..., secret: _Optional[bytes] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("resampled",)
    RESAMPLED_FIELD_NUMBER: _ClassVar[int]
    resampled: int
    def __init__(self, resampled: _Optional[int] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("session", "spec", "protocol", "verified", "keeps")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    KEEPS_FIELD_NUMBER: _ClassVar[int]
    session: str
    spec: bytes
    protocol: int
    verified: int
    keeps: bool
    def __init__(self, session: _Optional[str] = ..., spec: _Optional[bytes] = ..., protocol: _Optional[int] = ..., verified: _Optional[int] = ..., keeps: bool = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("path", "token", "tokens", "queue_us", "drafted", "draft_us", "residual", "leads_to", "alone", "log_probs")
    PATH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    RESIDUAL_FIELD_NUMBER: _ClassVar[int]
    LEADS_TO_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    path: _containers.RepeatedScalarFieldContainer[int]
    token: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    queue_us: int
    drafted: int
    draft_us: int
    residual: Residual
    leads_to: int
    alone: bool
    log_probs: bytes
    def __init__(self, path: _Optional[_Iterable[int]] = ..., token: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., queue_us: _Optional[int] = ..., drafted: _Optional[int] = ..., draft_us: _Optional[int] = ..., residual: _Optional[_Union[Residual, _Mapping]] = ..., leads_to: _Optional[int] = ..., alone: bool = ..., log_probs: _Optional[bytes] = ...) -> None: ...

class Residual(_message.Message):
    __slots__ = ("top", "tail_mass", "tail")
    TOP_FIELD_NUMBER: _ClassVar[int]
    TAIL_MASS_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    top: Rows
    tail_mass: float
    tail: Rows
    def __init__(self, top: _Optional[_Union[Rows, _Mapping]] = ..., tail_mass: _Optional[float] = ..., tail: _Optional[_Union[Rows, _Mapping]] = ...) -> None: ...

class Prediction(_message.Message):
    __slots__ = ("path", "token")
    PATH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    path: _containers.RepeatedScalarFieldContainer[int]
    token: int
    def __init__(self, path: _Optional[_Iterable[int]] = ..., token: _Optional[int] = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("code", "text", "retry_after_ms", "address", "lease", "lease_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    code: str
    text: str
    retry_after_ms: int
    address: str
    lease: bytes
    lease_ms: int
    def __init__(self, code: _Optional[str] = ..., text: _Optional[str] = ..., retry_after_ms: _Optional[int] = ..., address: _Optional[str] = ..., lease: _Optional[bytes] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("sizes", "probabilities", "ids", "id_bits")
    SIZES_FIELD_NUMBER: _ClassVar[int]
    PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    ID_BITS_FIELD_NUMBER: _ClassVar[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    probabilities: bytes
    ids: bytes
    id_bits: int
    def __init__(self, sizes: _Optional[_Iterable[int]] = ..., probabilities: _Optional[bytes] = ..., ids: _Optional[bytes] = ..., id_bits: _Optional[int] = ...) -> None: ...
