package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"strings"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// paint answers an A2A caller. It asks for a colour first.
func paint(_ context.Context, turn *client.A2AJob) (client.A2AEnd, error) {
	if turn.Turn == 1 {
		return turn.Ask(client.A2AText("Which colour?")), nil
	}
	if err := turn.Update(client.A2AText("painting")); err != nil {
		return client.A2AEnd{}, err
	}
	out := turn.Artifact(client.A2AArtifact{Name: "painting"})
	for _, word := range []string{"a ", turn.Text(), " house"} { // each piece reaches the caller while the agent works
		if err := out.Write(client.A2AText(word)); err != nil {
			return client.A2AEnd{}, err
		}
	}
	return turn.Done(client.A2AText("Here it is.")), nil
}

func ExampleClient_ServeA2A() {
	relay := startRelay()
	defer relay.Close()
	key, err := didkey.Generate()
	if err != nil {
		log.Fatal(err)
	}
	c, err := client.New(relay.URL, key, client.Options{HTTPClient: relay.Client()})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	at, _, err := c.PublishA2A(ctx, client.A2AEndpoint{Public: true, Proofs: true,
		Manifest: envelope.Manifest{Name: "Painter", Intents: []envelope.Intent{{ID: client.A2AIntent, Name: "paints houses"}}}})
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- c.ServeA2A(ctx, client.ServeOptions{}, paint) }()
	defer func() { cancel(); <-ended }()

	// Any A2A client calls the agent at at.Base(). Here it is plain HTTP.
	task := say(relay, at.URL, "", "Paint a house")
	fmt.Println(task.Status.State, task.Status.Message.Text())
	task = say(relay, at.URL, task.ID, "blue")
	fmt.Println(task.Status.State, task.Status.Message.Text())
	for _, part := range task.Artifacts[0].Parts {
		fmt.Print(*part.Text)
	}
	// Output:
	// TASK_STATE_INPUT_REQUIRED Which colour?
	// TASK_STATE_COMPLETED Here it is.
	// a blue house
}

// a2aTask is what say returns.
type a2aTask struct {
	ID     string
	Status struct {
		State   client.A2AState
		Message client.A2AMessage
	}
	Artifacts []client.A2AArtifact
}

// say sends a message to an A2A agent, and returns the task.
func say(relay *realRelay, url, task, text string) a2aTask {
	message := map[string]any{"messageId": "1", "role": "ROLE_USER", "parts": []client.A2APart{client.A2AText(text)}}
	if task != "" {
		message["taskId"] = task
	}
	body, err := json.Marshal(map[string]any{"message": message})
	if err != nil {
		log.Fatal(err)
	}
	response, err := relay.Client().Post(url+"/message:send", "application/json", strings.NewReader(string(body)))
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	var answer struct{ Task a2aTask }
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || response.StatusCode != http.StatusOK {
		log.Fatal(response.Status, err)
	}
	return answer.Task
}
