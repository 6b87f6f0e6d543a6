from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "order", "code", "size")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    order: _containers.RepeatedScalarFieldContainer[int]
    code: str
    size: int
    def __init__(self, dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., order: _Optional[_Iterable[int]] = ..., code: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("epoch", "number", "sent_s", "tensors", "hello", "welcome", "refused", "complete", "lost", "prepare", "ready", "restore", "restored", "stop", "round", "average", "move", "save", "collect", "install", "probe", "probe_pass", "probe_means", "recode", "done", "failed", "activations", "gradients", "contribution", "mean", "moved_layer", "held", "wanted", "late", "waiting")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SENT_S_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    AVERAGE_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    COLLECT_FIELD_NUMBER: _ClassVar[int]
    INSTALL_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    PROBE_PASS_FIELD_NUMBER: _ClassVar[int]
    PROBE_MEANS_FIELD_NUMBER: _ClassVar[int]
    RECODE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    ACTIVATIONS_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    MOVED_LAYER_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    number: int
    sent_s: float
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    hello: Hello
    welcome: Welcome
    refused: Refused
    complete: Complete
    lost: Lost
    prepare: Prepare
    ready: Ready
    restore: Restore
    restored: Restored
    stop: Stop
    round: Round
    average: Average
    move: Move
    save: Save
    collect: Collect
    install: Install
    probe: Probe
    probe_pass: ProbePass
    probe_means: ProbeMeans
    recode: Recode
    done: Done
    failed: Failed
    activations: Activations
    gradients: Gradients
    contribution: Contribution
    mean: Mean
    moved_layer: MovedLayer
    held: Held
    wanted: Wanted
    late: Late
    waiting: Waiting
    def __init__(self, epoch: _Optional[int] = ..., number: _Optional[int] = ..., sent_s: _Optional[float] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., complete: _Optional[_Union[Complete, _Mapping]] = ..., lost: _Optional[_Union[Lost, _Mapping]] = ..., prepare: _Optional[_Union[Prepare, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., restore: _Optional[_Union[Restore, _Mapping]] = ..., restored: _Optional[_Union[Restored, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., round: _Optional[_Union[Round, _Mapping]] = ..., average: _Optional[_Union[Average, _Mapping]] = ..., move: _Optional[_Union[Move, _Mapping]] = ..., save: _Optional[_Union[Save, _Mapping]] = ..., collect: _Optional[_Union[Collect, _Mapping]] = ..., install: _Optional[_Union[Install, _Mapping]] = ..., probe: _Optional[_Union[Probe, _Mapping]] = ..., probe_pass: _Optional[_Union[ProbePass, _Mapping]] = ..., probe_means: _Optional[_Union[ProbeMeans, _Mapping]] = ..., recode: _Optional[_Union[Recode, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., activations: _Optional[_Union[Activations, _Mapping]] = ..., gradients: _Optional[_Union[Gradients, _Mapping]] = ..., contribution: _Optional[_Union[Contribution, _Mapping]] = ..., mean: _Optional[_Union[Mean, _Mapping]] = ..., moved_layer: _Optional[_Union[MovedLayer, _Mapping]] = ..., held: _Optional[_Union[Held, _Mapping]] = ..., wanted: _Optional[_Union[Wanted, _Mapping]] = ..., late: _Optional[_Union[Late, _Mapping]] = ..., waiting: _Optional[_Union[Waiting, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("name", "scenario", "token")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCENARIO_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    scenario: str
    token: str
    def __init__(self, name: _Optional[str] = ..., scenario: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Complete(_message.Message):
    __slots__ = ("seen",)
    SEEN_FIELD_NUMBER: _ClassVar[int]
    seen: int
    def __init__(self, seen: _Optional[int] = ...) -> None: ...

class Lost(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("held",)
    HELD_FIELD_NUMBER: _ClassVar[int]
    held: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, held: _Optional[_Iterable[int]] = ...) -> None: ...

class Restore(_message.Message):
    __slots__ = ("position", "round", "cuts", "seed", "codes")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CUTS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CODES_FIELD_NUMBER: _ClassVar[int]
    position: int
    round: int
    cuts: _containers.RepeatedScalarFieldContainer[int]
    seed: int
    codes: _containers.RepeatedCompositeFieldContainer[Codes]
    def __init__(self, position: _Optional[int] = ..., round: _Optional[int] = ..., cuts: _Optional[_Iterable[int]] = ..., seed: _Optional[int] = ..., codes: _Optional[_Iterable[_Union[Codes, _Mapping]]] = ...) -> None: ...

class Restored(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Stop(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Round(_message.Message):
    __slots__ = ("round", "absent", "deadline_s")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    round: int
    absent: _containers.RepeatedScalarFieldContainer[int]
    deadline_s: float
    def __init__(self, round: _Optional[int] = ..., absent: _Optional[_Iterable[int]] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class Average(_message.Message):
    __slots__ = ("tier", "layers", "rounds")
    TIER_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    tier: int
    layers: _containers.RepeatedScalarFieldContainer[int]
    rounds: int
    def __init__(self, tier: _Optional[int] = ..., layers: _Optional[_Iterable[int]] = ..., rounds: _Optional[int] = ...) -> None: ...

class Move(_message.Message):
    __slots__ = ("cuts",)
    CUTS_FIELD_NUMBER: _ClassVar[int]
    cuts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, cuts: _Optional[_Iterable[int]] = ...) -> None: ...

class Recode(_message.Message):
    __slots__ = ("codes",)
    CODES_FIELD_NUMBER: _ClassVar[int]
    codes: _containers.RepeatedCompositeFieldContainer[Codes]
    def __init__(self, codes: _Optional[_Iterable[_Union[Codes, _Mapping]]] = ...) -> None: ...

class Codes(_message.Message):
    __slots__ = ("up", "down", "average")
    UP_FIELD_NUMBER: _ClassVar[int]
    DOWN_FIELD_NUMBER: _ClassVar[int]
    AVERAGE_FIELD_NUMBER: _ClassVar[int]
    up: str
    down: str
    average: str
    def __init__(self, up: _Optional[str] = ..., down: _Optional[str] = ..., average: _Optional[str] = ...) -> None: ...

class Save(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: int
    def __init__(self, position: _Optional[int] = ...) -> None: ...

class Collect(_message.Message):
    __slots__ = ("all",)
    ALL_FIELD_NUMBER: _ClassVar[int]
    all: bool
    def __init__(self, all: _Optional[bool] = ...) -> None: ...

class Install(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Probe(_message.Message):
    __slots__ = ("batches",)
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    batches: int
    def __init__(self, batches: _Optional[int] = ...) -> None: ...

class ProbePass(_message.Message):
    __slots__ = ("use", "trials", "first", "count", "step")
    class Use(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ADD: _ClassVar[ProbePass.Use]
        KEEP: _ClassVar[ProbePass.Use]
        COMPARE: _ClassVar[ProbePass.Use]
    ADD: ProbePass.Use
    KEEP: ProbePass.Use
    COMPARE: ProbePass.Use
    USE_FIELD_NUMBER: _ClassVar[int]
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    use: ProbePass.Use
    trials: _containers.RepeatedCompositeFieldContainer[Trial]
    first: int
    count: int
    step: float
    def __init__(self, use: _Optional[_Union[ProbePass.Use, str]] = ..., trials: _Optional[_Iterable[_Union[Trial, _Mapping]]] = ..., first: _Optional[int] = ..., count: _Optional[int] = ..., step: _Optional[float] = ...) -> None: ...

class Trial(_message.Message):
    __slots__ = ("client", "cut", "up", "down")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    UP_FIELD_NUMBER: _ClassVar[int]
    DOWN_FIELD_NUMBER: _ClassVar[int]
    client: int
    cut: int
    up: str
    down: str
    def __init__(self, client: _Optional[int] = ..., cut: _Optional[int] = ..., up: _Optional[str] = ..., down: _Optional[str] = ...) -> None: ...

class ProbeMeans(_message.Message):
    __slots__ = ("back",)
    BACK_FIELD_NUMBER: _ClassVar[int]
    back: bool
    def __init__(self, back: _Optional[bool] = ...) -> None: ...

class Found(_message.Message):
    __slots__ = ("moments", "squares", "of_entities", "overall", "apart")
    class ApartEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    SQUARES_FIELD_NUMBER: _ClassVar[int]
    OF_ENTITIES_FIELD_NUMBER: _ClassVar[int]
    OVERALL_FIELD_NUMBER: _ClassVar[int]
    APART_FIELD_NUMBER: _ClassVar[int]
    moments: _containers.RepeatedScalarFieldContainer[float]
    squares: _containers.RepeatedScalarFieldContainer[float]
    of_entities: _containers.RepeatedScalarFieldContainer[float]
    overall: _containers.RepeatedScalarFieldContainer[float]
    apart: _containers.ScalarMap[int, float]
    def __init__(self, moments: _Optional[_Iterable[float]] = ..., squares: _Optional[_Iterable[float]] = ..., of_entities: _Optional[_Iterable[float]] = ..., overall: _Optional[_Iterable[float]] = ..., apart: _Optional[_Mapping[int, float]] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("losses", "drift", "compute_s", "bps", "chains", "late", "found")
    class LossesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    class ComputeSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class BpsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class ChainsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: Chain
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[Chain, _Mapping]] = ...) -> None: ...
    class FoundEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Found
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Found, _Mapping]] = ...) -> None: ...
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    DRIFT_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    BPS_FIELD_NUMBER: _ClassVar[int]
    CHAINS_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    losses: _containers.ScalarMap[int, float]
    drift: float
    compute_s: _containers.ScalarMap[str, float]
    bps: _containers.ScalarMap[str, float]
    chains: _containers.MessageMap[int, Chain]
    late: _containers.RepeatedScalarFieldContainer[int]
    found: _containers.MessageMap[str, Found]
    def __init__(self, losses: _Optional[_Mapping[int, float]] = ..., drift: _Optional[float] = ..., compute_s: _Optional[_Mapping[str, float]] = ..., bps: _Optional[_Mapping[str, float]] = ..., chains: _Optional[_Mapping[int, Chain]] = ..., late: _Optional[_Iterable[int]] = ..., found: _Optional[_Mapping[str, Found]] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("name", "error", "text")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    name: str
    error: str
    text: str
    def __init__(self, name: _Optional[str] = ..., error: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Chain(_message.Message):
    __slots__ = ("compute_s", "up_s", "down_s")
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    UP_S_FIELD_NUMBER: _ClassVar[int]
    DOWN_S_FIELD_NUMBER: _ClassVar[int]
    compute_s: float
    up_s: float
    down_s: float
    def __init__(self, compute_s: _Optional[float] = ..., up_s: _Optional[float] = ..., down_s: _Optional[float] = ...) -> None: ...

class Activations(_message.Message):
    __slots__ = ("client", "chain", "chunk")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    client: int
    chain: Chain
    chunk: int
    def __init__(self, client: _Optional[int] = ..., chain: _Optional[_Union[Chain, _Mapping]] = ..., chunk: _Optional[int] = ...) -> None: ...

class Gradients(_message.Message):
    __slots__ = ("client", "chain", "chunk")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    client: int
    chain: Chain
    chunk: int
    def __init__(self, client: _Optional[int] = ..., chain: _Optional[_Union[Chain, _Mapping]] = ..., chunk: _Optional[int] = ...) -> None: ...

class Contribution(_message.Message):
    __slots__ = ("tier", "layers")
    TIER_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    tier: int
    layers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tier: _Optional[int] = ..., layers: _Optional[_Iterable[int]] = ...) -> None: ...

class Mean(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MovedLayer(_message.Message):
    __slots__ = ("layer", "entity", "names")
    LAYER_FIELD_NUMBER: _ClassVar[int]
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    layer: int
    entity: int
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, layer: _Optional[int] = ..., entity: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("name", "names")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    name: str
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class Wanted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class Late(_message.Message):
    __slots__ = ("round", "clients")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    round: int
    clients: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, round: _Optional[int] = ..., clients: _Optional[_Iterable[int]] = ...) -> None: ...
