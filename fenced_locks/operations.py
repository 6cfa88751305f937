"""Migration operations that put a guard on the fence token of a table and take it away."""

from __future__ import annotations

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from .guards import FenceGuard, guard_of, set_guard, token_owner, trigger_of
from .triggers import Trigger, checked_name, default_name, triggers_for

__all__ = ["AddFenceGuard", "RemoveFenceGuard"]


class _GuardOperation(Operation):
    """What adding and removing a guard share, as each is the other's reverse."""

    model_name: str

    @property
    def model_name_lower(self) -> str:
        """The model's name as the state of the migrations spells it."""
        return self.model_name.lower()

    def _create(self, app_label: str, editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        if trigger := self._trigger(app_label, editor, state):
            _execute(editor, triggers_for(editor.connection).create(trigger))

    def _drop(self, app_label: str, editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        if trigger := self._trigger(app_label, editor, state):
            _execute(editor, triggers_for(editor.connection).drop(trigger))

    def _trigger(self, app_label: str, editor: BaseDatabaseSchemaEditor, state: ProjectState) -> Trigger | None:
        # A router decides on the model whose table has the column, which may be a parent.
        model = state.apps.get_model(*token_owner(state, app_label, self.model_name))
        return trigger_of(model) if self.allow_migrate_model(editor.connection.alias, model) else None


def _execute(editor: BaseDatabaseSchemaEditor, statements: list[str]) -> None:
    for statement in statements:
        if editor.collect_sql:
            editor.collected_sql.extend(triggers_for(editor.connection).shown(statement))
        else:
            editor.execute(statement, params=None)


class AddFenceGuard(_GuardOperation):
    """
    Have the database refuse every UPDATE that lowers the fence token of a row, whoever sends it.

    For a multi-table child the guard is put on the parent's table, which has the token. A refusal is an
    ``IntegrityError``; ``fenced_locks.guards.is_guard_refusal`` tells it from others.

    Args:
        model_name: Name of the model, in the app of the migration.
        strict: Refuse every UPDATE that does not raise the token: also an equal one, and a plain ``save()``.
        name: Name of the trigger; made of the table's name if left out.

    Raises:
        ValueError: The table has a guard already, or the name is too long.
        FieldDoesNotExist: The model has no ``FenceTokenField``.
    """

    def __init__(self, model_name: str, *, strict: bool = False, name: str | None = None) -> None:
        self.model_name = model_name
        self.strict = strict
        self.name = name if name is None else checked_name(name)

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Record the guard in the state."""
        key = token_owner(state, app_label, self.model_name)
        if guard_of(state, key):
            raise ValueError(f"the table of {app_label}.{self.model_name} has a fence guard already")
        table = state.models[key].options.get("db_table") or "_".join(key)
        set_guard(state, key, FenceGuard(self.name or default_name(table), self.strict))

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Create the trigger."""
        self._create(app_label, schema_editor, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Drop the trigger."""
        self._drop(app_label, schema_editor, from_state)

    def describe(self) -> str:
        """Say it in a line, for ``migrate`` and ``sqlmigrate``."""
        return f"Add {'strict ' if self.strict else ''}fence guard to {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        """What the name of a squashed migration takes from this operation."""
        return f"{self.model_name_lower}_fence_guard"


class RemoveFenceGuard(_GuardOperation):
    """
    Take the guard of ``AddFenceGuard`` away; in reverse, put it back as it was.

    Args:
        model_name: Name of the model, in the app of the migration.

    Raises:
        ValueError: The migrations before this one put no guard on the table.
        FieldDoesNotExist: The model has no ``FenceTokenField``.
    """

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Record in the state that there is no guard."""
        key = token_owner(state, app_label, self.model_name)
        if guard_of(state, key) is None:
            raise ValueError(f"the table of {app_label}.{self.model_name} has no fence guard")
        set_guard(state, key, None)

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Drop the trigger."""
        self._drop(app_label, schema_editor, from_state)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Create the trigger."""
        self._create(app_label, schema_editor, to_state)

    def describe(self) -> str:
        """Say it in a line, for ``migrate`` and ``sqlmigrate``."""
        return f"Remove fence guard from {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        """What the name of a squashed migration takes from this operation."""
        return f"remove_{self.model_name_lower}_fence_guard"
