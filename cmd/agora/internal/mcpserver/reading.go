package mcpserver

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/fsync"
	"github.com/agora-relay/agora/internal/untrusted"
)

// The tools that only read.

func (s *Server) addReading() {
	add(s, "inbox", "Read the inbox", "Read the messages that others have sent to you: requests, offers, results, errors, "+
		"cancellations. By default it shows what is new since the last call."+s.inboxNext(),
		kind{repeats: false}, s.inbox)
	add(s, "read_message", "Read a long message", "Read the payload of one message from an offset on, 16 KiB at a time. Other tools "+
		"say when and how to use it, if they have cut a text.",
		kind{reads: true}, s.readMessage)
	add(s, "verify", "Verify a message", "Check the form and the signature of a signed Agora message (an envelope), however old "+
		"it is. A valid signature proves who wrote the message, and not that it is true.",
		kind{reads: true}, s.verify)
}

// inboxNext says which tools answer a message.
func (s *Server) inboxNext() (text string) {
	if s.works() {
		text += " To answer a request use next_job."
	}
	if s.hires() {
		text += " To continue a request of your own, use follow_up."
	}
	return text
}

type findIn struct {
	Text   string `json:"text,omitempty" jsonschema:"words to look for, such as translate"`
	Intent string `json:"intent,omitempty" jsonschema:"the exact name of a service, such as translation.en_zh"`
	Online bool   `json:"online,omitempty" jsonschema:"only agents that the relay has heard from in the last five minutes"`
	After  string `json:"after,omitempty" jsonschema:"more of the last call, to get the next agents"`
}

type findOut struct {
	Agents []agentView `json:"agents"`
	More   string      `json:"more,omitempty"` // for after
}

type agentView struct {
	Agent    string           `json:"agent"`         // the DID
	You      bool             `json:"you,omitempty"` // this identity
	Online   bool             `json:"online"`        // as the relay claims
	LastSeen time.Time        `json:"last_seen"`     // as the relay claims
	Manifest []untrusted.Text `json:"manifests"`
}

// pageAgents is how many agents an answer of find_agents has at most.
const pageAgents = 10

func (s *Server) findAgents(ctx context.Context, _ *mcp.CallToolRequest, in findIn, p *page) (findOut, error) {
	out := findOut{Agents: []agentView{}}
	after, err := hex.DecodeString(in.After)
	if err != nil {
		return out, mistake("after must be what the last call has returned as more")
	}
	found, err := s.relays.Agents(ctx, client.AgentQuery{Intent: in.Intent, Text: in.Text, Online: in.Online, Cursor: string(after),
		Limit: pageAgents})
	if err != nil {
		return out, err
	}
	var manifests []untrusted.Text
	for i, a := range found.Agents {
		v := s.agentView(a, shortText)
		p.Say("%d: agent %s.", i+1, v.line())
		manifests = append(manifests, v.Manifest...) // one of each agent
		out.Agents = append(out.Agents, v)
	}
	p.Lines("manifests of the agents with these numbers", manifests)
	switch {
	case found.HasMore && found.Cursor != "":
		out.More = hex.EncodeToString([]byte(found.Cursor)) // the relay has chosen the text, and base64 could read like words
		p.Say("There are more agents: call find_agents with after %s.", out.More)
	case len(out.Agents) == 0:
		p.Say("No such agent has announced itself. Try other words, or leave out intent and online.")
	}
	return out, nil
}

func (s *Server) agentView(a client.Agent, limit int) agentView {
	v := agentView{Agent: string(a.ID), You: a.ID == s.DID, Online: a.Online, LastSeen: a.LastSeen, Manifest: []untrusted.Text{}}
	for _, m := range a.Manifests {
		v.Manifest = append(v.Manifest, s.payloadOf(m, 0, limit))
	}
	return v
}

// line returns who the agent is.
func (v agentView) line() string {
	who, seen := v.Agent, "offline"
	if v.You {
		who += " (you)"
	}
	if v.Online {
		seen = "online"
	}
	return who + ", " + seen
}

type inboxIn struct {
	From string `json:"from,omitempty" jsonschema:"new (default): what is new since the last call; last: the same messages as the last call; oldest: begin again with the oldest message that the relay still has"`
}

type inboxOut struct {
	Messages []messageView `json:"messages"`
	More     bool          `json:"more"`
}

type messageView struct {
	Message  string          `json:"message"`          // for read_message
	Type     string          `json:"type"`             // of the envelope
	From     string          `json:"from"`             // the DID, proved by the signature
	Thread   string          `json:"thread,omitempty"` // its name
	ThreadID *untrusted.Text `json:"thread_id,omitempty"`
	Sent     time.Time       `json:"sent"`             // as the sender claims
	Sealed   bool            `json:"sealed,omitempty"` // it was encrypted
	Payload  untrusted.Text  `json:"payload"`
}

func (s *Server) viewOf(e *envelope.Envelope, limit int) messageView {
	return messageView{Message: handle(e), Type: string(e.Type), From: string(e.Sender.ID), Thread: s.threads.name(e.Thread), Sent: e.TS,
		Sealed: e.Sealed(), Payload: s.payloadOf(e, 0, limit)}
}

// line returns what is known about the message.
func (v messageView) line() string {
	text := fmt.Sprintf("%s from %s, sent %s, thread %s", v.Type, v.From, envelope.FormatTime(v.Sent), cmp.Or(v.Thread, "none"))
	if v.Sealed {
		text += "; " + strings.TrimSuffix(v.Payload.What, ",")
	}
	return text
}

// show writes one message with the id of its thread.
func (v messageView) show(p *page) {
	p.Say("%s:", v.line())
	p.Quote(v.Payload)
	if v.ThreadID != nil {
		p.Quote(*v.ThreadID)
	}
}

// threadID returns the id of a message's thread, for other programs; nil: it has none, or the LLM sees it as its name.
func (s *Server) threadID(e *envelope.Envelope) *untrusted.Text {
	if s.threads.name(e.Thread) == e.Thread {
		return nil
	}
	id := untrusted.New(string(e.Sender.ID), "id of the thread", []byte(e.Thread), shortText, "")
	return &id
}

// pageMessages is how many messages an answer of inbox has at most.
const pageMessages = 20

// inboxPosition is the JSON of the file that remembers what inbox has shown. Messages are shown again if the answer of
// the last call was lost: the LLM asks for them with from=last.
type inboxPosition struct {
	Last string `json:"last"` // where the last page began
	Next string `json:"next"` // where the next page begins
}

func (s *Server) inbox(ctx context.Context, _ *mcp.CallToolRequest, in inboxIn, p *page) (inboxOut, error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	out := inboxOut{Messages: []messageView{}}
	if !slices.Contains([]string{"", "new", "last", "oldest"}, in.From) {
		return out, mistake("from must be new, last or oldest")
	}
	var at inboxPosition
	if err := s.load("inbox.json", &at); err != nil {
		return out, err
	}
	cursor := at.Next
	switch in.From {
	case "last":
		cursor = at.Last
	case "oldest":
		cursor = ""
	}
	filter := client.Filter{Recipient: s.DID}
	found, err := s.relays.Events(ctx, filter, cursor, pageMessages)
	if refusal, ok := errors.AsType[*envelope.Error](err); ok && refusal.Reason() == envelope.ReasonUnknownCursor {
		p.Say("The relay has lost its data, so these are the oldest messages that it has.")
		cursor = ""
		found, err = s.relays.Events(ctx, filter, cursor, pageMessages)
	}
	if err != nil {
		return out, err
	}
	out.Messages = s.list(p, found.Events)
	if out.More = found.HasMore; out.More {
		p.Say("There are more messages: call inbox again.")
	}
	if len(out.Messages) == 0 {
		p.Say("There are no new messages.")
		if in.From != "oldest" && !out.More {
			return out, nil // so that "last" still means the last messages
		}
	}
	return out, s.save("inbox.json", inboxPosition{Last: cursor, Next: found.Cursor})
}

// list writes messages, and returns their views.
func (s *Server) list(p *page, events []*envelope.Envelope) []messageView {
	views, payloads := []messageView{}, []untrusted.Text{}
	for i, e := range events {
		v := s.viewOf(e, shortText)
		p.Say("%d: %s.", i+1, v.line())
		views, payloads = append(views, v), append(payloads, v.Payload)
	}
	p.Lines("payloads of the messages with these numbers", payloads)
	return views
}

// load reads a file of s.Folder as JSON into v. It leaves v unchanged if there is no such file.
func (s *Server) load(name string, v any) error {
	text, err := os.ReadFile(filepath.Join(s.Folder, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		if err = json.Unmarshal(text, v); err != nil {
			err = fmt.Errorf("%s is damaged: %w; remove it", filepath.Join(s.Folder, name), err)
		}
	}
	return local(err)
}

func (s *Server) save(name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return local(fsync.Replace(filepath.Join(s.Folder, name), append(text, '\n')))
}

type readIn struct {
	Message string `json:"message" jsonschema:"the id of the message, as another tool has shown it"`
	Thread  string `json:"thread,omitempty" jsonschema:"the thread of the message"`
	Client  string `json:"client,omitempty" jsonschema:"who opened the thread, if it was not you and several threads have this id"`
	Agent   string `json:"agent,omitempty" jsonschema:"for a manifest, instead of thread: the DID of the agent"`
	Offset  int    `json:"offset,omitempty" jsonschema:"where to begin, in bytes"`
}

func (s *Server) readMessage(ctx context.Context, _ *mcp.CallToolRequest, in readIn, p *page) (v messageView, err error) {
	var events []*envelope.Envelope
	switch {
	case (in.Thread == "") == (in.Agent == ""):
		return v, mistake("Give thread, or agent for a manifest.")
	case in.Agent != "":
		var id didkey.DID
		if id, err = did("agent", in.Agent); err != nil {
			return v, err
		}
		a, err := s.relays.Agent(ctx, id)
		if err != nil {
			return v, err
		}
		events = a.Manifests
	default:
		record, err := s.anyThread(ctx, in.Thread, in.Client)
		if err != nil {
			return v, err
		}
		events = record.Events
	}
	i := slices.IndexFunc(events, func(e *envelope.Envelope) bool { return handle(e) == in.Message })
	if i < 0 {
		return v, mistake("There is no such message there, or it has expired.")
	}
	if in.Offset < 0 || in.Offset > len(events[i].Payload) {
		return v, mistake("offset must be from 0 to %d, the size of the payload", len(events[i].Payload))
	}
	v = s.viewOf(events[i], longText)
	v.Payload, v.ThreadID = s.payloadOf(events[i], in.Offset, longText), s.threadID(events[i])
	v.show(p)
	return v, nil
}

// anyThread reads a thread of anybody. If whose is empty, it is this identity's own thread, or else the oldest with this
// id.
func (s *Server) anyThread(ctx context.Context, id, whose string) (*client.Thread, error) {
	id, err := s.threads.id(id)
	if err != nil {
		return nil, err
	}
	if whose != "" {
		opener, err := did("client", whose)
		if err != nil {
			return nil, err
		}
		return s.relays.Thread(ctx, id, opener)
	}
	record, err := s.relays.Thread(ctx, id, s.DID)
	if envelope.CodeOf(err) == envelope.CodeThreadNotFound {
		return s.relays.Thread(ctx, id, "")
	}
	return record, err
}

type verifyIn struct {
	Envelope any `json:"envelope" jsonschema:"the signed message: a JSON object, or its text"`
}

type verifyOut struct {
	Valid   bool         `json:"valid"`
	Why     string       `json:"why,omitempty"` // what is wrong
	Message *messageView `json:"contents,omitempty"`
}

// maxEnvelope is the size in bytes of the largest envelope that verify reads.
const maxEnvelope = 1 << 20

func (s *Server) verify(_ context.Context, _ *mcp.CallToolRequest, in verifyIn, p *page) (out verifyOut, err error) {
	text, isText := in.Envelope.(string)
	if !isText {
		encoded, err := json.Marshal(in.Envelope)
		if err != nil {
			return out, err
		}
		text = string(encoded)
	}
	e, err := envelope.Parse([]byte(strings.TrimSpace(text)), maxEnvelope)
	if err == nil {
		err = e.Verify()
	}
	if err != nil { // the errors of package envelope hold nothing of the input
		out.Why = err.Error()
		p.Say("The message is not valid: %s", out.Why)
		return out, nil
	}
	v := s.viewOf(e, longText)
	v.ThreadID = s.threadID(e)
	out = verifyOut{Valid: true, Message: &v}
	p.Say("The signature is valid. The message is signed by %s.", e.Sender.ID)
	v.show(p)
	return out, nil
}
