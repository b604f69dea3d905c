package jobs

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay/httpapi"
)

// The names of the limits in answers with status 429, beside envelope.LimitRequests.
const (
	limitPrincipals = "principals"
	limitOwners     = "owners"
	limitAgents     = "agents"
	limitJobs       = "unfinishedJobs"
	limitPayments   = "payments"
)

// ownLimits has these names.
var ownLimits = map[string]bool{limitPrincipals: true, limitOwners: true, limitAgents: true, limitJobs: true,
	limitPayments: true}

// The codes of failed jobs ([003] §5).
const (
	codeSkill    = "SKILL_MISMATCH"
	codeBudget   = "BUDGET_INSUFFICIENT"
	codeOffline  = "AGENT_OFFLINE"
	codeError    = "EXECUTION_ERROR"
	codeTransfer = "TRANSFER_FAILED"
)

// refusal is a refusal in the form of upstream's web framework.
type refusal struct {
	status int
	code   string // error_code; empty: none
	detail string
}

func (e *refusal) Error() string { return e.detail }

// refuse returns a refusal. format and args are as for fmt.Sprintf.
func refuse(status int, format string, args ...any) error {
	return &refusal{status: status, detail: fmt.Sprintf(format, args...)}
}

func unauthorized() error {
	return refuse(http.StatusUnauthorized, "this needs the key of a principal, which POST /accounts returns; send it as "+
		"Authorization: Bearer KEY, or add /k/KEY to the base URL")
}

func forbidden(format string, args ...any) error {
	return refuse(http.StatusForbidden, format, args...)
}

func notFound(format string, args ...any) error {
	return refuse(http.StatusNotFound, format, args...)
}

func conflict(format string, args ...any) error {
	return refuse(http.StatusConflict, format, args...)
}

// limitReached refuses a request because a limit of the gateway is reached.
func limitReached(limit string, format string, args ...any) error {
	e := envelope.Errorf(envelope.CodeRateLimited, format, args...)
	e.RetryAfter, e.Details = time.Hour, map[string]any{envelope.DetailLimit: limit}
	return e
}

// answerTo returns the answer to an error. It is the Errors of the gateway's Mount.
func answerTo(err error) (httpapi.ErrorAnswer, bool) {
	if e, ok := errors.AsType[*invalid](err); ok {
		return httpapi.ErrorAnswer{Status: http.StatusUnprocessableEntity, Body: map[string]any{"detail": e.fields}}, true
	}
	if e, ok := errors.AsType[*refusal](err); ok {
		body := map[string]any{"detail": e.detail}
		if e.code != "" {
			body["error_code"] = e.code
		}
		answer := httpapi.ErrorAnswer{Status: e.status, Body: body}
		if e.status == http.StatusUnauthorized {
			answer.Challenge = "Bearer"
		}
		return answer, true
	}
	e, ok := errors.AsType[*envelope.Error](err)
	if !ok {
		return httpapi.ErrorAnswer{}, false
	}
	if e.Code == envelope.CodeInvalidRequest {
		return answerTo(invalidField(e.Message, "body"))
	}
	answer, ok := httpapi.RelayError(err)
	body := map[string]any{}
	maps.Copy(body, e.Details)
	body["detail"] = e.Message
	if e.Code == envelope.CodeRateLimited && !ownLimits[e.Limit()] {
		body[envelope.DetailLimit] = envelope.LimitRequests
	}
	answer.Body = body
	return answer, ok
}
