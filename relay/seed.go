package relay

import (
	"context"
	"encoding/json"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// seedStory is one demonstration thread.
type seedStory struct {
	agent, intent, title, params, plan, output string // agent is a name
	price                                      float64
	eta                                        float64
}

var seedStories = []seedStory{
	{"Demo translator", "translation.en_zh", "Translate a greeting", `{"text":"Hello, world"}`, "Translate, keeping the tone",
		`{"translation":"你好，世界","confidence":0.99}`, 0.005, 2},
	{"Demo summarizer", "summary.text", "Summarize a page", `{"url":"https://example.com/report","max_words":30}`,
		"Read it and write three sentences",
		`{"summary":"Sales rose in the north. Costs fell. The outlook is steady."}`, 0.02, 8},
	{"Demo captioner", "image.caption", "Caption a picture", `{"image":"https://example.com/cat.png"}`, "One line, plain words",
		`{"caption":"A grey cat asleep on a keyboard"}`, 0.001, 1},
}

// Seed posts demonstration threads between generated agents, on behalf of from. In each, the agent announces itself with
// a MANIFEST, and there are a REQUEST, an OFFER, an ACCEPT and a RESULT. They go through Post like any other messages.
// Seed returns how many envelopes it posted.
func (r *Relay) Seed(ctx context.Context, from Peer) (count int, err error) {
	for _, story := range seedStories {
		client, err := didkey.Generate()
		if err != nil {
			return count, err
		}
		agent, err := didkey.Generate()
		if err != nil {
			return count, err
		}
		posted, err := r.postStory(ctx, from, story, client, agent)
		count += posted
		if err != nil {
			return count, err
		}
	}
	return count, nil
}

func (r *Relay) postStory(
	ctx context.Context, poster Peer, story seedStory, client, agent didkey.Key,
) (posted int, err error) {
	now := r.now()
	thread, request := envelope.NewID("thread", now), envelope.NewID("req", now)
	validUntil := now.Add(r.policy.Rules.PendingTimeout)
	steps := []struct {
		from    didkey.Key
		to      didkey.DID // empty: everybody, outside the thread
		name    string
		payload envelope.Payload
	}{
		{agent, "", story.agent, envelope.Manifest{ID: "cap_demo", Name: story.agent,
			Intents: []envelope.Intent{{ID: story.intent}},
			Pricing: &envelope.Pricing{Model: "fixed", Currency: "USD", FixedPrice: story.price}}},
		{client, agent.DID(), "Demo client", envelope.Request{RequestID: request, Intent: story.intent, Title: story.title,
			Params: json.RawMessage(story.params)}},
		{agent, client.DID(), story.agent, envelope.Offer{RequestID: request, Plan: story.plan, ETASeconds: story.eta,
			Price: &envelope.Price{Amount: story.price, Currency: "USD"}, ValidUntil: &validUntil}},
		{client, agent.DID(), "Demo client", envelope.Accept{RequestID: request, AcceptedAt: &now,
			Terms: &envelope.Terms{PriceUSD: &story.price}}},
		{agent, client.DID(), story.agent, envelope.Result{RequestID: request, Status: "success",
			Output: json.RawMessage(story.output)}},
	}
	for _, step := range steps {
		draft := envelope.Draft{Payload: step.payload, Recipient: step.to, SenderName: step.name}
		if step.to != "" {
			draft.Thread = thread
		}
		e, err := draft.Sign(step.from, r.now())
		if err != nil {
			return posted, err
		}
		if _, err := r.Post(ctx, poster, e.Canonical()); err != nil {
			return posted, err
		}
		posted++
	}
	return posted, nil
}
