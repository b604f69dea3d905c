package joins

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/agora-relay/agora/client/internal/conn"
	"github.com/agora-relay/agora/client/internal/journal"
	"github.com/agora-relay/agora/client/internal/wire"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/jsontext"
)

// How an agent joins the hub and the registry of jobs.

// endpointOf returns the endpoint of a registration that belongs to a DID (BRIDGE B-1).
func endpointOf(did didkey.DID) string { return "agora:" + string(did) }

// notInName is what a name at the hub cannot have (HUB §2).
var notInName = regexp.MustCompile(`[^a-zA-Z0-9._-]+`)

// defaultCulture is the language of an agent that does not name one.
const defaultCulture = "en"

// maxHubAddress is the largest size of an address at the hub.
const maxHubAddress = 128

// hub registers NAME@HOST at the hub.
func (j *Joiner) hub(ctx context.Context, o Options, before journal.Joined) (journal.Joined, error) {
	g, err := j.Conn.Gateway(ctx, conn.Hub)
	if err != nil {
		return journal.Joined{}, err
	}
	var about struct {
		Name string `json:"server_name"`
	}
	err = j.Conn.Repeat(ctx, (*wire.Failure).Temporary, func(ctx context.Context) *wire.Failure {
		request := wire.Request{Base: g.URLs[conn.Hub], Method: http.MethodGet, Target: "/.well-known/chorus.json"}
		return j.Conn.Wire.Send(ctx, request, wire.Spec{Out: &about, Limit: wire.MaxDocument, Sister: true})
	})
	if err == nil && (about.Name == "" || notInName.MatchString(about.Name)) {
		err = errors.New("the hub's document has no valid server_name")
	}
	if err != nil {
		return journal.Joined{}, err
	}
	digits := strings.TrimPrefix(j.Conn.Signer.DID().Multibase(), "z6Mk")
	name := cmp.Or(strings.Trim(notInName.ReplaceAllString(o.AgentName(), "-"), "-"), "agent")
	name = name[:min(len(name), max(1, maxHubAddress-len(about.Name)-len("@-123456")))]
	names := []string{name, name + "-" + digits[:6]}
	if before.ID != "" && strings.HasPrefix(before.ID, names[1]+"@") {
		names = names[1:]
	}
	culture := cmp.Or(o.Culture, defaultCulture)
	for _, name := range names {
		address := name + "@" + about.Name
		err = j.Conn.Call(ctx, conn.Hub, conn.Call{Method: http.MethodPost, Path: "/register", Repeatable: true,
			Body: jsontext.Compact(map[string]any{
				"agent_id": address, "endpoint": endpointOf(j.Conn.Signer.DID()),
				"agent_card": map[string]any{"card_version": "0.3", "user_culture": culture, "supported_languages": []string{culture}},
			})})
		if err == nil {
			return journal.Joined{Place: journal.Place{Address: address}, ID: address}, nil
		}
		if wire.StatusOf(err) != http.StatusConflict {
			break
		}
	}
	return journal.Joined{}, err
}

// skillForm is the form of the name of a skill (JOBS §2).
var skillForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)

// maxSkills is how many skills an agent may have in the registry of jobs.
const maxSkills = 64

// skills returns the skills of the agent in the registry of jobs, and the intents that cannot be skills.
func (o Options) skills() (skills []map[string]any, skipped []string) {
	var names []string
	for _, intent := range o.Manifest.Intents {
		if envelope.IsGatewayIntent(intent.ID) {
			continue
		}
		if !skillForm.MatchString(intent.ID) || slices.Contains(names, intent.ID) ||
			len(skills) == maxSkills {
			skipped = append(skipped, intent.ID)
			continue
		}
		names = append(names, intent.ID)
		skills = append(skills, map[string]any{"skill_name": intent.ID, "description": cmp.Or(intent.Name, intent.ID),
			"cost_per_call": o.Credits, "input_schema": struct{}{}, "output_schema": struct{}{}})
	}
	return skills, skipped
}

// agentUUID returns the id of an agent in the registry of jobs. It depends on the DID only, so an agent that has lost its
// state does not become another one.
func agentUUID(did didkey.DID) string {
	sum := sha256.Sum256([]byte("agora jobs " + did))
	sum[6], sum[8] = sum[6]&0x0f|0x40, sum[8]&0x3f|0x80 // the form of a random UUID (RFC 9562 §5.4)
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// jobs registers the agent in the registry of jobs.
func (j *Joiner) jobs(ctx context.Context, o Options, before journal.Joined) (done journal.Joined, err error) {
	skills, skipped := o.skills()
	if len(skills) == 0 {
		return journal.Joined{}, errors.New("none of the agent's intents can be the name of a skill")
	}
	did := j.Conn.Signer.DID()
	for _, id := range []string{cmp.Or(before.ID, agentUUID(did)), ""} {
		form := map[string]any{"agent_name": o.AgentName(), "owner_id": did, "api_endpoint": endpointOf(did), "skills": skills}
		if id != "" {
			form["agent_id"] = id
		}
		var answer struct {
			ID string `json:"agent_id"`
		}
		err = j.Conn.Call(ctx, conn.Jobs, conn.Call{Method: http.MethodPost, Path: "/register",
			Repeatable: id != "", Body: jsontext.Compact(form), Out: &answer})
		if err == nil && answer.ID == "" {
			err = errors.New("the registry's answer has no agent_id")
		}
		if err == nil {
			return journal.Joined{Place: journal.Place{Address: answer.ID, Skipped: skipped}, ID: answer.ID}, nil
		}
		if wire.StatusOf(err) != http.StatusConflict {
			break
		}
	}
	return journal.Joined{}, err
}
