"""Where the description has a closed set of strings, and the code's constant for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from app import rules
from app.accounts.domains.models import DomainState
from app.audit import append
from app.auth.models import InvitationState, SessionKind
from app.auth.tokens import BEARER
from app.collections import changes, masking, transfer
from app.collections import fields as field_types
from app.collections.schema import ON_DELETE
from app.portability.bundle.models import ExportState
from app.sso import providers
from app.sso.models import CATEGORIES
from app.web.languages import LANGUAGES
from app.webhooks import models as deliveries
from app.webhooks import payload
from app.workflows import hooks
from app.workflows import models as workflows
from app.workflows.language import definition, missing

EVENTS_OF_RECORDS = [event for event in payload.EVENTS if event != payload.TEST_EVENT]
ENUMS: Mapping[str, Collection[str]] = {
    "AuditEntry.operation": append.OPERATIONS,
    "ConnectionSettings.category": CATEGORIES,
    "DeliveryView.event": payload.EVENTS,
    "DeliveryView.status": deliveries.STATES,
    "DomainView.state": [*DomainState],
    "ExportView.status": [*ExportState],
    "ExecutionView.status": tuple(hooks.ExecutionState),
    "ExecutionView.trigger_type": hooks.TRIGGERS,
    "Explanation.operation": rules.OPERATIONS,
    "FeedItem.event": [*EVENTS_OF_RECORDS, "records.reset"],
    "FieldDefinition.mask_type": masking.MASKS,
    "FieldDefinition.on_delete": ON_DELETE,
    "FieldDefinition.return_type": field_types.RETURN_TYPES,
    "FieldDefinition.type": field_types.TYPES,
    "ImportBody.strategy": transfer.STRATEGIES,
    "ImportedCollection.status": transfer.OUTCOMES,
    "InstanceView.status": workflows.STATES,
    "InstanceView.trigger_type": workflows.TRIGGERS,
    "InvitationView.status": [*InvitationState],
    "NewHook.actions.[].type": definition.ACTIONS,
    "NewWebhook.events.[]": deliveries.OPERATIONS,
    "NewWorkflow.steps.[].type": definition.PROPERTIES,
    "NewWorkflow.trigger.event": definition.EVENTS,
    "NewWorkflow.trigger.type": workflows.TRIGGERS,
    "OwnUserView.language": LANGUAGES,
    "PlannedOperation.operation": changes.PLANNED_OPERATIONS,
    "ProviderKind.provider_name": providers.NAMES,
    "ProviderRow.category": CATEGORIES,
    "PublicInvitation.status": [*InvitationState],
    "RecordChange.operation": append.OPERATIONS,
    "RefusalView.category": CATEGORIES,
    "RoleDifference.operation": rules.OPERATIONS,
    "Scopes.operations.[]": rules.OPERATIONS,
    "SessionView.kind": [*SessionKind],
    "StepLogView.status": workflows.LOG_STATES,
    "StepLogView.step_type": definition.PROPERTIES,
    "TokenPair.token_type": [BEARER],
    "WarningView.code": [
        missing.COLLECTION_MISSING,
        missing.FIELD_MISSING,
        missing.GROUP_MISSING,
    ],
    "WebhookView.events.[]": deliveries.OPERATIONS,
    "WorkflowView.trigger_type": workflows.TRIGGERS,
}
