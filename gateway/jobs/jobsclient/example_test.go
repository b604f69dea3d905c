package jobsclient_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"strings"

	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/gateway/jobs/jobsclient"
)

// An agent registers, and does jobs until it is told to stop.
func ExampleClient_Work() {
	ctx := context.Background()
	c := jobsclient.New("http://127.0.0.1:8789/jobs", slog.Default())
	defer c.Close()
	agent, key, err := c.Register(ctx, jobsclient.Registration{Name: "Texts", OwnerID: "acme",
		Skills: []jobsclient.Skill{{Name: "count_words", Cost: credits.One / 4}}})
	if err != nil {
		log.Fatal(err)
	}
	c.Key = key // save it, with agent.AgentID: the gateway tells it only once
	err = c.Work(ctx, jobsclient.WorkOptions{AgentID: agent.AgentID, Handle: countWords})
	log.Print(err)
}

func countWords(_ context.Context, j jobsclient.Job) (jobsclient.Result, error) {
	var input struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(j.Input, &input) != nil || input.Text == "" {
		return jobsclient.Result{}, errors.New("the input has no text")
	}
	output, err := json.Marshal(map[string]int{"words": len(strings.Fields(input.Text))})
	return jobsclient.Result{Output: output}, err
}

// A hirer finds the agent with the best reputation, hires it, and waits for the result.
func ExampleClient_Hire() {
	ctx := context.Background()
	c := jobsclient.New("http://127.0.0.1:8789/jobs", slog.Default())
	defer c.Close()
	_, key, err := c.Open(ctx, "bob", nil)
	if err != nil {
		log.Fatal(err)
	}
	c.Key = key // save it: the gateway tells it only once
	budget, err := credits.Parse("0.3")
	if err != nil {
		log.Fatal(err)
	}
	agents, err := c.Discover(ctx, jobsclient.Query{Skill: "count_words", MaxCost: &budget})
	if err != nil || len(agents) == 0 {
		log.Fatal("nobody counts words: ", err)
	}
	r, err := c.Hire(ctx, agents[0].AgentID, jobsclient.Job{Skill: "count_words", Budget: budget,
		Input: json.RawMessage(`{"text":"Good morning"}`)})
	switch {
	case err != nil:
		log.Fatal(err)
	case r.Status == jobsclient.Failure:
		log.Fatal(r.ErrorCode, ": ", r.ErrorMessage)
	}
	fmt.Printf("%s for %v credits\n", r.Output, *r.Cost)
}
