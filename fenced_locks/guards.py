"""
Fence guards: triggers that refuse any UPDATE that lowers a fence token, whoever sends it.

The operations of ``fenced_locks.operations`` make them. Here is what concerns them afterwards: which guards the
migrations promise, whether they are there, how they come back, and how one works without them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from django.apps.registry import Apps
from django.core.exceptions import FieldDoesNotExist
from django.db import DEFAULT_DB_ALIAS, connections, models, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.state import ModelState, ProjectState
from django.db.models.utils import make_model_tuple

from .fields import FenceTokenField
from .refusals import is_guard_refusal as is_guard_refusal
from .triggers import Trigger, can_guard, triggers_for

# Where a state keeps its guard, and the model made of it: on `_meta`, which children do not inherit.
_ATTRIBUTE = "fence_guard"

ModelKey = tuple[str, str]


@dataclass(frozen=True)
class FenceGuard:
    """What the migrations promise for the table of a model."""

    name: str
    strict: bool


class GuardedModelState(ModelState):
    """
    The state of a model whose table has, or had, a guard.

    Not an option of the model: Django takes no options that it does not know, and the autodetector compares them.
    """

    fence_guard: FenceGuard | None = None

    def clone(self) -> GuardedModelState:
        """Return a copy, guard included."""
        copy = super().clone()
        assert isinstance(copy, GuardedModelState)
        copy.fence_guard = self.fence_guard
        return copy

    def render(self, apps: Any) -> type[models.Model]:
        """Return the model, which knows its guard."""
        model: type[models.Model] = super().render(apps)
        setattr(model._meta, _ATTRIBUTE, self.fence_guard)
        return model


def without_fence_guard(*, using: str | None = None) -> AbstractContextManager[None]:
    """
    Run a block, for maintenance, in which no fence guard refuses a write of this connection.

    The block is one transaction, or a savepoint of the one that is open: it is rolled back when it raises. Other
    connections stay guarded. Blocks may be nested; the guards are back at the end of the outermost one. On SQLite it
    takes the write lock at once.

    Args:
        using: Alias of the database; the default one if left out.
    """
    return triggers_for(connections[using or DEFAULT_DB_ALIAS]).lifted()


def token_owner(state: ProjectState, app_label: str, model_name: str) -> ModelKey:
    """
    Return the key of the model whose table has the fence token: this one, or a parent of a multi-table child.

    Raises:
        FieldDoesNotExist: Neither has one.
    """
    owner = _find_owner(state, (app_label, model_name.lower()))
    if owner is None:
        raise FieldDoesNotExist(f"{app_label}.{model_name} has no FenceTokenField, so there is nothing to guard")
    return owner


def set_guard(state: ProjectState, key: ModelKey, guard: FenceGuard | None) -> None:
    """Record a guard in the state of the migrations, or that there is none."""
    guarded = state.models[key].clone()
    if not isinstance(guarded, GuardedModelState):
        # Other packages have kinds of state of their own, for the tables that they make.
        kind = type(guarded)
        guarded.__class__ = type(f"Guarded{kind.__name__}", (GuardedModelState, kind), {})
    setattr(guarded, _ATTRIBUTE, guard)
    state.models[key] = guarded
    state.reload_model(*key, delay=True)


def guard_of(state: ProjectState, key: ModelKey) -> FenceGuard | None:
    """Return the guard that the migrations promise up to this state."""
    return getattr(state.models[key], _ATTRIBUTE, None)


def trigger_of(model: type[models.Model]) -> Trigger | None:
    """Return the guard of a model of the migrations in the words of the database."""
    guard: FenceGuard | None = getattr(model._meta, _ATTRIBUTE, None)
    if guard is None:
        return None
    field = next((field for field in model._meta.local_fields if _is_token(field.name, field)), None)
    if field is None:
        return Trigger(guard.name, model._meta.db_table, None, guard.strict)
    return Trigger(guard.name, model._meta.db_table, field.column, guard.strict, field.null)


def promised_guards(connection: BaseDatabaseWrapper) -> list[Trigger]:
    """Return the guards that the migrations applied to this database promise."""
    executor = MigrationExecutor(connection)
    loader = executor.loader
    state = ProjectState(real_apps=loader.unmigrated_apps)
    for migration, _ in executor.migration_plan(loader.graph.leaf_nodes(), clean_start=True):
        if (migration.app_label, migration.name) in loader.applied_migrations:
            migration.mutate_state(state, preserve=False)
    # Rendering the models takes longest, and most projects need it for nothing.
    promises = any(guard_of(state, key) for key in state.models)
    return _guards_in(state.apps, connection) if promises else []


def missing_guards(connection: BaseDatabaseWrapper) -> list[Trigger]:
    """Return the promised guards that the database does not have, or not as they should be."""
    if not can_guard(connection):
        return []
    triggers = triggers_for(connection)
    guarded = [trigger for trigger in promised_guards(connection) if trigger.column]
    return [trigger for trigger in guarded if not triggers.is_current(trigger)]


def restore_guards(using: str, apps: Apps | None = None, **kwargs: Any) -> None:
    """
    Put back the guards that migrations lost; a receiver of ``post_migrate``.

    SQLite forgets a trigger when its table is rebuilt, MySQL and MariaDB keep the old name of a renamed column.
    """
    connection = connections[using]
    if apps is None or not can_guard(connection):
        return
    for trigger in _guards_in(apps, connection):
        _restore(connection, trigger)


def _restore(connection: BaseDatabaseWrapper, trigger: Trigger) -> None:
    triggers = triggers_for(connection)
    if trigger.column is None:
        statements = triggers.drop(trigger) if triggers.definition(trigger) else []
    elif triggers.has_table(trigger) and not triggers.is_current(trigger):
        statements = [*triggers.drop(trigger), *triggers.create(trigger)]
    else:
        return
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _guards_in(apps: Apps, connection: BaseDatabaseWrapper) -> list[Trigger]:
    """Return the guards of the models that live in this database."""
    guarded = [(model, trigger_of(model)) for model in apps.get_models()]
    return [trigger for model, trigger in guarded if trigger and _lives_in(connection, model)]


def _lives_in(connection: BaseDatabaseWrapper, model: type[models.Model]) -> bool:
    # What every operation of a migration asks.
    return model._meta.can_migrate(connection.alias) and router.allow_migrate_model(connection.alias, model)


def _find_owner(state: ProjectState, key: ModelKey) -> ModelKey | None:
    if key not in state.models:
        return None
    if any(_is_token(name, field) for name, field in state.models[key].fields.items()):
        return key
    parents = (make_model_tuple(base) for base in state.models[key].bases if isinstance(base, str))
    return next((owner for owner in (_find_owner(state, parent) for parent in parents) if owner), None)


def _is_token(name: str, field: models.Field[Any, Any]) -> bool:
    return isinstance(field, FenceTokenField) or name == "fence_token"
