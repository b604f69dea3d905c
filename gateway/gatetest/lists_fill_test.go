package gatetest_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/gatetest"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi/apidocs"
)

type object = map[string]any

// listPaths returns the paths of a part of the OpenAPI document whose answers to GET are a list, or have one as a member.
func listPaths(part apidocs.Part) (paths []string, err error) {
	var document struct {
		Paths      map[string]map[string]any
		Components object
	}
	if err := json.Unmarshal(part.Text, &document); err != nil {
		return nil, err
	}
	components := object{"components": document.Components}
	for path, item := range document.Paths {
		get, _ := item["get"].(object)
		responses, _ := get["responses"].(object)
		response := follow(components, responses["200"])
		content, _ := response["content"].(object)
		asJSON, _ := content["application/json"].(object)
		if hasList(components, asJSON["schema"], 1) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths, nil
}

// follow returns the object to which a $ref leads, or the object itself.
func follow(document object, at any) object {
	o, _ := at.(object)
	ref, isRef := o["$ref"].(string)
	if !isRef {
		return o
	}
	for name := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
		document, _ = document[name].(object)
	}
	return document
}

// hasList reports whether a schema describes a list, or an object with a list as a member.
func hasList(document object, schema any, depth int) bool {
	s := follow(document, schema)
	isList := s["type"] == "array"
	if types, several := s["type"].([]any); several {
		isList = slices.Contains(types, any("array"))
	}
	for _, kind := range []string{"oneOf", "anyOf", "allOf"} {
		all, _ := s[kind].([]any)
		for _, one := range all {
			isList = isList || hasList(document, one, depth)
		}
	}
	members, _ := s["properties"].(object)
	for _, member := range members {
		isList = isList || depth > 0 && hasList(document, member, depth-1)
	}
	return isList
}

// update changes the database directly, because thousands of requests would take long.
func (s *listSite) update(f func(relay.ExtTx) error) {
	s.t.Helper()
	if err := s.Relay.Update(s.t.Context(), relay.Peer{Local: true}, f); err != nil {
		s.t.Fatal(err)
	}
}

// insert inserts a row with its checksum.
func insert(tx relay.ExtTx, table string, values ...any) error {
	into := table
	if table == "hub_agent" { // later migrations have added columns
		into += " (n, address, culture, card, endpoint, registered, deleted, sum)"
	}
	_, err := tx.Exec("INSERT INTO "+into+" VALUES (?"+strings.Repeat(", ?", len(values))+")",
		gateway.WithSum(table, values)...)
	return err
}

var hubLists = map[string]list{
	"/hub/agents":   {true, fillHub("/hub/agents")},
	"/hub/discover": {true, fillHub("/hub/discover")},
	"/hub/agent/messages": {true, func(s *listSite) gatetest.Call {
		key := s.do(register("alice@b"))["data"].(object)["api_key"].(string)
		for range 12 {
			s.do(gatetest.Call{Method: "POST", Path: "/hub/messages", Key: key, Body: object{"receiver_id": "alice@b",
				"envelope": object{"chorus_version": "0.4", "sender_id": "alice@b", "sender_culture": "en",
					"original_text": strings.Repeat("界", 9_900)}}})
		}
		return gatetest.Call{Method: "GET", Path: "/hub/agent/messages", Key: key}
	}},
}

func register(address string) gatetest.Call {
	return gatetest.Call{Method: "POST", Path: "/hub/register", Body: object{"agent_id": address,
		"agent_card": object{"card_version": "0.3", "user_culture": "en", "supported_languages": []string{"en", "zh-CN"}}}}
}

// fillHub registers 3,000 agents, once.
func fillHub(path string) func(*listSite) gatetest.Call {
	return func(s *listSite) gatetest.Call {
		if !s.filled {
			s.fillAgents(3_000)
			s.filled = true
		}
		return gatetest.Call{Method: "GET", Path: path}
	}
}

// fillAgents registers agents at the hub. It restarts the relay, which then reads them.
func (s *listSite) fillAgents(count int) {
	const first, step = 1_000_000, 500
	for done := 0; done < count; done += step {
		s.update(func(tx relay.ExtTx) error {
			_, err := tx.Exec("DELETE FROM gate_counter WHERE name = 'hub_agent'")
			errs := []error{err, insert(tx, "gate_counter", "hub_agent", int64(first+done+step))}
			for n := int64(first + done); n < int64(first+done+step); n++ {
				errs = append(errs, insert(tx, "hub_agent", n, fmt.Sprintf("agent-%d@list.example", n), "en",
					`{"card_version":"0.3","supported_languages":["en"],"user_culture":"en"}`, []byte{}, int64(1), int64(0)),
					insert(tx, "hub_use", n, s.Now().UnixNano(), int64(0), int64(1), int64(0), int64(0), int64(0), int64(0), int64(0)),
					gateway.AddKey(tx, gateway.NewKey(gateway.HubAgent), gateway.Holder{Kind: gateway.HubAgent, Owner: n}))
			}
			return errors.Join(errs...)
		})
	}
	s.Restart()
}

var channelLists = map[string]list{
	"/channel/channels/{channel}/members": {false, func(s *listSite) gatetest.Call {
		return s.fillRoom(200, "members", func(n int) object { return object{"name": fmt.Sprint("member-", n)} })
	}},
	"/channel/channels/{channel}/connections": {false, func(s *listSite) gatetest.Call {
		return s.fillRoom(50, "connections", func(n int) object {
			return object{"name": fmt.Sprint("agent-", n), "url": fmt.Sprint("https://agent.example/", n)}
		})
	}},
	"/channel/channels/{channel}/events": {true, func(s *listSite) gatetest.Call {
		c := s.fillRoom(1, "members", func(int) object { return object{"name": "alice"} })
		path := strings.TrimSuffix(c.Path, "/members")
		member := s.do(gatetest.Call{Method: "POST", Path: path + "/members", Key: c.Key, Body: object{"name": "bob"}})
		key := member["key"].(string)
		for range 40 {
			s.do(gatetest.Call{Method: "POST", Path: path + "/messages", Key: key, Body: object{"content": strings.Repeat("x", 30_000)}})
		}
		return gatetest.Call{Method: "GET", Path: path + "/events?limit=200", Key: key}
	}},
	"/channel/inboxes": {false, func(s *listSite) gatetest.Call {
		owner, err := didkey.Generate()
		if err != nil {
			s.t.Fatal(err)
		}
		for range 20 {
			s.do(s.signed(owner, "POST", "/channel/inboxes", `{"label":"`+strings.Repeat("x", 80)+`"}`))
		}
		return s.signed(owner, "GET", "/channel/inboxes", "")
	}},
}

// signed returns a signed call. It can be sent once.
func (s *listSite) signed(k didkey.Key, method, path, body string) gatetest.Call {
	s.t.Helper()
	token, err := envelope.Call{Body: sha256.Sum256([]byte(body)), Read: envelope.Read{Audience: gatetest.PublicURL,
		Method: method, Target: path, TS: s.Now()}}.Sign(k)
	if err != nil {
		s.t.Fatal(err)
	}
	return gatetest.Call{Method: method, Path: path, Body: body, Header: map[string]string{"Authorization": "Agora " + token}}
}

// fillRoom makes a channel with n members or connections, and returns the request for their list.
func (s *listSite) fillRoom(n int, kind string, body func(int) object) gatetest.Call {
	s.t.Helper()
	made := s.do(gatetest.Call{Method: "POST", Path: "/channel/channels", Key: s.Operator, Body: object{"name": kind}})
	key := made["key"].(string)
	path := "/channel/channels/" + made["channel"].(object)["id"].(string) + "/" + kind
	for i := range n {
		s.do(gatetest.Call{Method: "POST", Path: path, Key: key, Body: body(i)})
	}
	return gatetest.Call{Method: "GET", Path: path, Key: key}
}

func jobsUUID(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// principal creates an account and returns its key.
func (s *listSite) principal(owner string) string {
	s.t.Helper()
	return s.do(gatetest.Call{Method: "POST", Path: "/jobs/accounts", Body: object{"owner_id": owner}})["api_key"].(string)
}

// agents registers agents of a principal, each with these skills.
func (s *listSite) agents(key, owner string, first, count int, skills func(n int) []object) {
	s.t.Helper()
	for n := first; n < first+count; n++ {
		s.do(gatetest.Call{Method: "POST", Path: "/jobs/register", Key: key, Body: object{"agent_id": jobsUUID(n),
			"agent_name": fmt.Sprint("agent ", n), "owner_id": owner, "api_endpoint": "", "skills": skills(n)}})
	}
}

func skill(name string, description int) object {
	return object{"skill_name": name, "description": strings.Repeat("x", description), "cost_per_call": 0}
}

var jobsLists = map[string]list{
	"/jobs/discover": {true, func(s *listSite) gatetest.Call {
		s.agents(s.principal("found"), "found", 1000, 100, func(int) []object { return []object{skill("found", 2000)} })
		return gatetest.Call{Method: "GET", Path: "/jobs/discover?skill=found"}
	}},
	"/jobs/skills": {true, func(s *listSite) gatetest.Call {
		s.agents(s.principal("skilled"), "skilled", 2000, 20, func(n int) (all []object) {
			for i := range 60 {
				all = append(all, skill(fmt.Sprintf("skill_%d_%d_%s", n, i, strings.Repeat("x", 100)), 0))
			}
			return all
		})
		return gatetest.Call{Method: "GET", Path: "/jobs/skills"}
	}},
	"/jobs/agents/{id}": {false, func(s *listSite) gatetest.Call {
		s.agents(s.principal("one"), "one", 3000, 1, func(int) (all []object) {
			for i := range 28 {
				all = append(all, skill(fmt.Sprint("one_", i), 2000))
			}
			return all
		})
		return gatetest.Call{Method: "GET", Path: "/jobs/agents/" + jobsUUID(3000)}
	}},
	"/jobs/agents/{id}/jobs": {true, func(s *listSite) gatetest.Call {
		key := s.principal("worker")
		s.agents(key, "worker", 4000, 1, func(int) []object { return []object{skill("work", 0)} })
		hirer := s.principal("hirer")
		for n := range 8 {
			s.do(gatetest.Call{Method: "POST", Path: "/jobs/a/" + jobsUUID(4000) + "/jobs?wait=0", Key: hirer,
				Body: object{"job_id": jobsUUID(5000 + n), "orchestrator_id": "me", "skill_name": "work", "budget": 0,
					"input_data": object{"text": strings.Repeat("x", 40_000)}}})
		}
		return gatetest.Call{Method: "GET", Path: "/jobs/agents/" + jobsUUID(4000) + "/jobs", Key: key}
	}},
	"/jobs/audit": {true, func(s *listSite) gatetest.Call {
		key := s.principal("payer")
		s.principal("payee")
		for n := range 450 {
			s.do(gatetest.Call{Method: "POST", Path: "/jobs/transfer", Key: key, Body: object{"from_owner": "payer",
				"to_owner": "payee", "amount": 0.1, "transfer_id": jobsUUID(6000 + n)}})
		}
		return gatetest.Call{Method: "GET", Path: "/jobs/audit?limit=500", Key: key}
	}},
}

// endpoint publishes an endpoint of a new agent, which everybody may call. It returns the path.
func (s *listSite) endpoint(description string) (owner didkey.Key, path string) {
	s.t.Helper()
	owner, err := didkey.Generate()
	if err != nil {
		s.t.Fatal(err)
	}
	at := wire.NewEndpoint(gatetest.PublicURL+"/a2a", owner.DID())
	card, err := at.Sign(at.FromManifest(envelope.Manifest{Name: "list", Version: "1", Description: description,
		Intents: []envelope.Intent{{ID: "demo.list"}}}, wire.Public), wire.Public, owner)
	if err != nil {
		s.t.Fatal(err)
	}
	path = "/a2a/" + owner.DID().Multibase()
	s.do(s.signed(owner, "PUT", path+"/endpoint",
		fmt.Sprintf(`{"card":%s,"access":"public","mode":"message","listed":true}`, card)))
	return owner, path
}

// sendTask begins a task with a text of this size.
func (s *listSite) sendTask(path, key string, size int) {
	s.do(gatetest.Call{Method: "POST", Path: path + "/message:send", Key: key, Body: object{
		"message":       object{"messageId": "m", "role": "ROLE_USER", "parts": []object{{"text": "x" + strings.Repeat("x", size)}}},
		"configuration": object{"returnImmediately": true}}})
}

var a2aLists = map[string]list{
	"/a2a/agents": {true, func(s *listSite) gatetest.Call {
		for range 6 {
			s.endpoint(strings.Repeat("x", 20_000))
		}
		return gatetest.Call{Method: "GET", Path: "/a2a/agents"}
	}},
	"/a2a/{agent}/keys": {false, func(s *listSite) gatetest.Call {
		owner, path := s.endpoint("")
		for n := range 200 {
			s.do(s.signed(owner, "POST", path+"/keys", fmt.Sprintf(`{"name":"k%d-%s"}`, n, strings.Repeat("x", 50))))
		}
		return s.signed(owner, "GET", path+"/keys", "")
	}},
	"/a2a/{agent}/tasks/{id}/pushNotificationConfigs": {true, func(s *listSite) gatetest.Call {
		owner, path := s.endpoint("")
		key := s.do(s.signed(owner, "POST", path+"/keys", `{"name":"alice"}`))["key"].(string)
		s.sendTask(path, key, 0)
		var id string
		s.update(func(tx relay.ExtTx) error {
			return tx.Query(func(scan gateway.Scanner) error { return scan(&id) }, "SELECT id FROM a2a_task ORDER BY n DESC LIMIT 1")
		})
		push := gatetest.Call{Method: "POST", Path: path + "/tasks/" + id + "/pushNotificationConfigs", Key: key}
		for n := range 10 {
			push.Body = object{"id": fmt.Sprint(n) + strings.Repeat("x", 120), "url": "https://a.example/" + strings.Repeat("x", 2000), "token": strings.Repeat("x", 1024),
				"authentication": object{"scheme": strings.Repeat("x", 64), "credentials": strings.Repeat("x", 4096)}}
			s.do(push)
		}
		push.Method, push.Body = "GET", nil
		return push
	}},
	"/a2a/hooks": {false, func(s *listSite) gatetest.Call {
		owner, err := didkey.Generate()
		if err != nil {
			s.t.Fatal(err)
		}
		for range 20 {
			s.do(s.signed(owner, "POST", "/a2a/hooks", fmt.Sprintf(`{"label":%q}`, strings.Repeat("x", 80))))
		}
		return s.signed(owner, "GET", "/a2a/hooks", "")
	}},
	"/a2a/work/{turn}": {true, func(s *listSite) gatetest.Call {
		owner, path := s.endpoint("")
		s.sendTask(path, "", 0)
		var turn string
		setState := func(state int64) {
			s.update(func(tx relay.ExtTx) error {
				_, err := tx.Exec("UPDATE a2a_turn SET state = ?", state)
				return errors.Join(err, tx.Query(func(scan gateway.Scanner) error { return scan(&turn) }, "SELECT id FROM a2a_turn ORDER BY n DESC LIMIT 1"))
			})
		}
		setState(2) // accepted, so the agent may send progress
		for n := range 4 {
			s.do(s.signed(owner, "POST", "/a2a/work/"+turn+"/events", fmt.Sprintf(
				`{"events":[{"artifactUpdate":{"artifact":{"artifactId":"%d","parts":[{"text":"%s"}]}}}]}`, n,
				strings.Repeat("x", 30_000))))
		}
		setState(1) // as before, so that the checksum fits
		return s.signed(owner, "GET", "/a2a/work/"+turn, "")
	}},
	"/a2a/{agent}/tasks": {true, func(s *listSite) gatetest.Call {
		owner, path := s.endpoint("")
		key := s.do(s.signed(owner, "POST", path+"/keys", `{"name":"alice"}`))["key"].(string)
		for range 4 {
			s.sendTask(path, key, 30_000)
		}
		return gatetest.Call{Method: "GET", Path: path + "/tasks?historyLength=1", Key: key}
	}},
}
