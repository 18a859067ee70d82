"""The names of `greenroom`: what one opens, gets and catches. Imported when one of them is first used."""

# One name twice makes it public for type checkers.
# ruff: noqa: I001

from .actors.event_stream import Subscription as Subscription
from .actors.host import ServerRequest as ServerRequest
from .actors.watchers import CallView as CallView, Watcher as Watcher
from .catalogue.entries import ServerEntry as ServerEntry
from .catalogue.namespace import ResourceEntry as ResourceEntry, Target as Target
from .catalogue.search import Match as Match, SearchPage as SearchPage
from .gateway.doors.in_process_door import InProcessDoor as InProcessDoor
from .gateway.endpoint import Outlet as Outlet
from .gateway.exposures.search_tool import SearchTool as SearchTool
from .protocol.address import Address as Address
from .protocol.errors import (
    CallError as CallError,
    CallTimeout as CallTimeout,
    ConfigError as ConfigError,
    GreenroomError as GreenroomError,
    Reach as Reach,
    RpcRefusal as RpcRefusal,
    ServerLost as ServerLost,
    Unavailable as Unavailable,
    UnknownTool as UnknownTool,
    UsageError as UsageError,
)
from .protocol.lifecycle import State as State
from .protocol.result import (
    Completion as Completion,
    ModelResult as ModelResult,
    PromptMessages as PromptMessages,
    ResourceContents as ResourceContents,
    ToolResult as ToolResult,
)
from .protocol.status import DrainReport as DrainReport, ServerStatus as ServerStatus
from .protocol.tree import TreeNode as TreeNode
from .safety.approval import ApprovalRequest as ApprovalRequest, Verdict as Verdict
from .supervisor.call_stream import CallStream as CallStream, CallTask as CallTask
from .supervisor.port import Updates as Updates
from .supervisor.reload import ReloadPlan as ReloadPlan
from .supervisor.room import (
    Greenroom as Greenroom,
    ModelTools as ModelTools,
    OwnTool as OwnTool,
    Session as Session,
)
from .tape.replay_servers import Replay as Replay
