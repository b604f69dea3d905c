package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
)

// call checks an endpoint in both bindings.
func call(ctx context.Context, base, key string, input bool) error {
	card, err := resolve(ctx, base, key)
	if err != nil {
		return err
	}
	same, err := resolve(ctx, strings.TrimSuffix(base, "/"), key)
	if err != nil || !reflect.DeepEqual(card, same) {
		return fmt.Errorf("the card at the URL without a slash differs (%w): %+v", err, same)
	}
	for _, binding := range []a2a.TransportProtocol{a2a.TransportProtocolJSONRPC, a2a.TransportProtocolHTTPJSON} {
		ctx, client, err := connect(ctx, card, key, binding)
		if err == nil {
			c := &caller{Client: client}
			if key != "" { // an anonymous caller can list only a context that the relay has named
				c.context = a2a.NewContextID()
			}
			err = c.all(ctx, input)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", binding, err)
		}
	}
	return nil
}

// say sends a text to an agent, and prints the text of the result.
func say(ctx context.Context, base, key, text string) error {
	card, err := resolve(ctx, base, key)
	if err != nil {
		return err
	}
	ctx, client, err := connect(ctx, card, key, a2a.TransportProtocolJSONRPC)
	if err != nil {
		return err
	}
	c := &caller{Client: client}
	task, err := c.sent(ctx, c.request(text))
	if err != nil {
		return err
	}
	for task.Status.State == a2a.TaskStateSubmitted || task.Status.State == a2a.TaskStateWorking {
		if task, err = client.GetTask(ctx, &a2a.GetTaskRequest{ID: task.ID}); err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	if task.Status.State != a2a.TaskStateCompleted {
		return fmt.Errorf("the task is %s", task.Status.State)
	}
	for _, artifact := range task.Artifacts {
		fmt.Print(textOf(artifact.Parts))
	}
	return nil
}

// resolve reads the card of an endpoint.
func resolve(ctx context.Context, base, key string) (*a2a.AgentCard, error) {
	resolver := agentcard.DefaultResolver
	if key != "" {
		resolver = &agentcard.Resolver{CardParser: parseKeyed}
	}
	card, err := resolver.Resolve(ctx, base)
	if err != nil {
		return nil, fmt.Errorf("the card at %s: %w", base, err)
	}
	return card, nil
}

// connect returns a client of an endpoint, and the context of its calls.
func connect(
	ctx context.Context, card *a2a.AgentCard, key string, binding a2a.TransportProtocol,
) (context.Context, *a2aclient.Client, error) {
	keys := a2aclient.NewInMemoryCredentialsStore()
	for name := range card.SecuritySchemes {
		keys.Set("session", name, a2aclient.AuthCredential(key))
	}
	ctx = a2aclient.AttachSessionID(ctx, "session")
	client, err := a2aclient.NewFromCard(ctx, card,
		a2aclient.WithCallInterceptors(&a2aclient.AuthInterceptor{Service: keys}),
		a2aclient.WithConfig(a2aclient.Config{PreferredTransports: []a2a.TransportProtocol{binding}}))
	return ctx, client, err
}

// parseKeyed parses the card of an endpoint that wants a key. a2a-go 2.3.1 cannot: it expects the scopes of a
// requirement as an array, but ProtoJSON has {"list":[…]}.
func parseKeyed(text []byte) (*a2a.AgentCard, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return nil, err
	}
	var requirements []struct {
		Schemes map[a2a.SecuritySchemeName]struct{ List a2a.SecuritySchemeScopes }
	}
	if err := json.Unmarshal(members["securityRequirements"], &requirements); err != nil {
		return nil, err
	}
	delete(members, "securityRequirements")
	rest, err := json.Marshal(members)
	if err != nil {
		return nil, err
	}
	card, err := agentcard.DefaultCardParser(rest)
	if err != nil {
		return nil, err
	}
	for _, r := range requirements {
		schemes := a2a.SecurityRequirements{}
		for name, scopes := range r.Schemes {
			schemes[name] = scopes.List
		}
		card.SecurityRequirements = append(card.SecurityRequirements, schemes)
	}
	return card, nil
}

// caller makes the calls in one binding.
type caller struct {
	*a2aclient.Client
	context string // empty: the first answer names it
	tasks   int    // in the context
}

func (c *caller) all(ctx context.Context, input bool) error {
	steps := []struct {
		name string
		run  func(context.Context) error
	}{{"send", c.send}, {"stream", c.stream}, {"cancel", c.cancel}, {"input", c.input}, {"list", c.list},
		{"errors", c.errors}}
	for _, step := range steps {
		if step.name == "input" && !input {
			continue
		}
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// request returns a message of the caller, and counts the task that it opens.
func (c *caller) request(text string) *a2a.SendMessageRequest {
	c.tasks++
	message := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(text))
	message.ContextID = c.context
	return &a2a.SendMessageRequest{Message: message}
}

// sent sends a message and returns the task that is answered.
func (c *caller) sent(ctx context.Context, r *a2a.SendMessageRequest) (*a2a.Task, error) {
	answer, err := c.SendMessage(ctx, r)
	if err != nil {
		return nil, err
	}
	task, ok := answer.(*a2a.Task)
	if !ok {
		return nil, fmt.Errorf("the answer is no task: %+v", answer)
	}
	return task, nil
}

// mustBe checks the state of a task, and the text of its artifacts.
func mustBe(task *a2a.Task, state a2a.TaskState, text string) error {
	got := ""
	for _, artifact := range task.Artifacts {
		got += textOf(artifact.Parts)
	}
	if task.Status.State != state || got != text {
		return fmt.Errorf("want %s and the text %q, got %s and %q", state, text, task.Status.State, got)
	}
	return nil
}

func textOf(parts a2a.ContentParts) (text string) {
	for _, part := range parts {
		text += part.Text()
	}
	return text
}

func (c *caller) send(ctx context.Context) error {
	task, err := c.sent(ctx, c.request("echo hello there"))
	if err != nil {
		return err
	}
	if c.context == "" {
		c.context = task.ContextID
	}
	if task.ContextID != c.context || c.context == "" {
		return fmt.Errorf("the context %q became %q", c.context, task.ContextID)
	}
	if err := mustBe(task, a2a.TaskStateCompleted, "hello there"); err != nil {
		return err
	}
	one := 1
	got, err := c.GetTask(ctx, &a2a.GetTaskRequest{ID: task.ID, HistoryLength: &one})
	if err != nil {
		return err
	}
	if len(got.History) != 1 || got.History[0].Role != a2a.MessageRoleUser {
		return fmt.Errorf("the history must be the one message of the caller: %+v", got.History)
	}
	return mustBe(got, a2a.TaskStateCompleted, "hello there")
}

func (c *caller) stream(ctx context.Context) error {
	var last a2a.TaskState
	text, events := "", 0
	for event, err := range c.SendStreamingMessage(ctx, c.request("chunks a b c")) {
		if err != nil {
			return err
		}
		switch e := event.(type) {
		case *a2a.Task:
			if events > 0 {
				return fmt.Errorf("event %d is a task", events)
			}
		case *a2a.TaskArtifactUpdateEvent:
			text += textOf(e.Artifact.Parts)
		case *a2a.TaskStatusUpdateEvent:
			last = e.Status.State
		}
		if events++; last == "" && text == "" && events > 1 {
			return fmt.Errorf("event %d is %T", events, event)
		}
	}
	if text != "abc" || last != a2a.TaskStateCompleted {
		return fmt.Errorf("the stream had the text %q and ended with %q", text, last)
	}
	return nil
}

// cancel cancels a task that works, and follows it meanwhile.
func (c *caller) cancel(ctx context.Context) error {
	r := c.request("hold")
	r.Config = &a2a.SendMessageConfig{ReturnImmediately: true}
	task, err := c.sent(ctx, r)
	if err != nil {
		return err
	}
	last, canceled := task.Status.State, false
	for event, err := range c.SubscribeToTask(ctx, &a2a.SubscribeToTaskRequest{ID: task.ID}) {
		if err != nil {
			return err
		}
		switch e := event.(type) {
		case *a2a.Task:
			last = e.Status.State
		case *a2a.TaskStatusUpdateEvent:
			last = e.Status.State
		}
		if last == a2a.TaskStateWorking && !canceled {
			canceled = true
			got, err := c.CancelTask(ctx, &a2a.CancelTaskRequest{ID: task.ID})
			if err != nil {
				return err
			}
			if err := mustBe(got, a2a.TaskStateCanceled, ""); err != nil {
				return err
			}
		}
	}
	if !canceled || last != a2a.TaskStateCanceled {
		return fmt.Errorf("the stream ended with %s", last)
	}
	_, err = c.CancelTask(ctx, &a2a.CancelTaskRequest{ID: task.ID})
	if !errors.Is(err, a2a.ErrTaskNotCancelable) {
		return fmt.Errorf("a second cancel: %w", err)
	}
	return nil
}

// input answers a question of the agent.
func (c *caller) input(ctx context.Context) error {
	task, err := c.sent(ctx, c.request("ask"))
	if err != nil {
		return err
	}
	if err := mustBe(task, a2a.TaskStateInputRequired, ""); err != nil {
		return err
	}
	if task.Status.Message == nil || textOf(task.Status.Message.Parts) != "what?" {
		return fmt.Errorf("the question is %+v", task.Status.Message)
	}
	answer := a2a.NewMessageForTask(a2a.MessageRoleUser, task, a2a.NewTextPart("blue"))
	if task, err = c.sent(ctx, &a2a.SendMessageRequest{Message: answer}); err != nil {
		return err
	}
	return mustBe(task, a2a.TaskStateCompleted, "blue")
}

// list reads the tasks of the context, one on each page.
func (c *caller) list(ctx context.Context) error {
	seen := map[a2a.TaskID]bool{}
	r := &a2a.ListTasksRequest{ContextID: c.context, PageSize: 1}
	for {
		page, err := c.ListTasks(ctx, r)
		if err != nil {
			return err
		}
		if len(page.Tasks) > 1 || page.TotalSize != c.tasks {
			return fmt.Errorf("a page has %d tasks of %d; there are %d", len(page.Tasks), page.TotalSize, c.tasks)
		}
		for _, task := range page.Tasks {
			seen[task.ID] = true
		}
		if page.NextPageToken == "" {
			break
		}
		r.PageToken = page.NextPageToken
	}
	if len(seen) != c.tasks {
		return fmt.Errorf("the pages have %d tasks; there are %d", len(seen), c.tasks)
	}
	return nil
}

func (c *caller) errors(ctx context.Context) error {
	if _, err := c.GetTask(ctx, &a2a.GetTaskRequest{ID: "unknown"}); !errors.Is(err, a2a.ErrTaskNotFound) {
		return fmt.Errorf("an unknown task: %w", err)
	}
	return nil
}
