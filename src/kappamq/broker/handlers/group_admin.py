"""Administration of consumer groups: create, change, delete; their progress as a whole."""

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from kappamq.broker.attributes import GROUP_ATTRIBUTES, alter_attributes
from kappamq.broker.committed_offsets import CommittedOffsets
from kappamq.broker.groups import Groups
from kappamq.broker.members import Members
from kappamq.broker.router import Handler
from kappamq.broker.statistics import Statistics
from kappamq.broker.topics import Topics
from kappamq.errors import NotPermitted, Refused, UsageError
from kappamq.model.config import GroupConfig
from kappamq.model.names import is_retry_topic
from kappamq.net.connection import Connection
from kappamq.wire.admin_bodies import decode_group_list_to_create
from kappamq.wire.bodies import decode_group_config, decode_object, encode_group_configs, encode_object
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.headers import CloneOffsetRequest, DeleteGroupRequest, GroupConfigRequest, decode_fields


class GroupAdminHandlers:
    """Requests 43, 200, 201, 207, 225, 314, 352 and 401."""

    def __init__(
        self,
        *,
        topics: Topics,
        groups: Groups,
        offsets: CommittedOffsets,
        members: Members,
        statistics: Statistics,
        saved: Callable[[], Awaitable[object]],
    ) -> None:
        """`saved` returns when the groups are on disk."""
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._members = members
        self._statistics = statistics
        self._saved = saved

    def table(self) -> Mapping[int, Handler]:
        return {
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.put,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.list,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.put_list,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.config,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode,
        }

    async def put(self, _: Connection, request: Command) -> Command:
        self._put(decode_group_config(decode_object(request.body)))
        await self._saved()
        return request.reply()

    async def put_list(self, _: Connection, request: Command) -> Command:
        for group in decode_group_list_to_create(request.body):
            self._put(group)
        await self._saved()
        return request.reply()

    def _put(self, wanted: GroupConfig) -> None:
        """Store a group whose attributes are changes; those without a sign are added."""
        known = self._groups.find(wanted.group_name)
        changes = {key if key[:1] in ("+", "-") else f"+{key}": value for key, value in wanted.attributes.items()}
        attributes = alter_attributes(known.attributes if known is not None else None, changes, known=GROUP_ATTRIBUTES)
        self._groups.put(msgspec.structs.replace(wanted, attributes=attributes))

    async def delete(self, _: Connection, request: Command) -> Command:
        """Forget a group and its figures; its progress too where that is asked for. Unknown groups are no error."""
        wanted = decode_fields(request.fields, DeleteGroupRequest)
        self._groups.remove(wanted.group_name)
        self._statistics.forget(wanted.group_name)
        if wanted.clean_offset or wanted.remove_offset:
            self._offsets.forget_group(wanted.group_name)
        await self._saved()
        return request.reply()

    def list(self, _: Connection, request: Command) -> Command:
        groups = self._groups.table()
        return request.reply(
            fields={"totalGroupNum": str(len(groups))},
            body=encode_group_configs(groups.values(), self._groups.version),
        )

    def config(self, _: Connection, request: Command) -> Command:
        return request.reply(
            body=encode_object(self._groups.get(decode_fields(request.fields, GroupConfigRequest).group))
        )

    def all_offsets(self, _: Connection, request: Command) -> Command:
        """The progress of all groups, as a slave asks for it."""
        return request.reply(body=encode_object(self._offsets.as_file()))

    def set_mode(self, _: Connection, request: Command) -> Command:
        """How a group gets the messages of a topic: by pulls, the only way that there is here."""
        wanted = decode_object(request.body)
        topic, mode = wanted.get("topic"), wanted.get("mode")
        if isinstance(topic, str) and is_retry_topic(topic):
            raise NotPermitted("retry topic is not allowed to set mode")
        if mode != "PULL":
            raise Refused(
                f"this broker does not serve the mode {mode!r} yet: consume {topic!r} in mode PULL",
                code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            )
        return request.reply()

    def clone(self, _: Connection, request: Command) -> Command:
        """Give one group the progress of another, in one topic or in all that the source still consumes."""
        wanted = decode_fields(request.fields, CloneOffsetRequest)
        if wanted.src_group == wanted.dest_group:
            raise UsageError(f"group {wanted.src_group} is source and target at once: name two groups")
        self._groups.get(wanted.dest_group)
        for topic in [wanted.topic] if wanted.topic else self._offsets.topics_of(wanted.src_group):
            if self._topics.find(topic) is None:
                continue
            if wanted.offline or self._members.is_subscribed(wanted.src_group, topic):
                self._offsets.clone(wanted.src_group, wanted.dest_group, topic)
        return request.reply()
