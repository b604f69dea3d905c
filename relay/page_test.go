package relay

import (
	"testing"
	"time"
)

// TestPageLength checks PROTOCOL §7, rule 3. Each letter stands for a ts, in the order of the sequence from 1.
func TestPageLength(t *testing.T) {
	for name, c := range map[string]struct {
		ts     string
		behind Seq // of the last event with the bookmark's ts
		limit  int
		want   int
	}{
		"all fit":                                 {"abc", 0, 10, 3},
		"ends at the limit":                       {"abcd", 0, 2, 2},
		"not between equal timestamps":            {"abbbc", 0, 2, 1},
		"not before a ts that occurs again":       {"abac", 0, 1, 2},
		"no possible end fits: the first one":     {"aaab", 0, 2, 3},
		"after the events with the bookmark's ts": {"aabc", 2, 1, 3},
		"the same ts for all":                     {"aaaa", 0, 1, 4},
	} {
		var pending []Event
		for i, letter := range c.ts {
			pending = append(pending, Event{Seq: Seq(i + 1), TS: time.Unix(int64(letter), 0), Size: 1})
		}
		if got := pageLength(pending, c.behind, c.limit); got != c.want {
			t.Errorf("%s: a page of %d events, want %d", name, got, c.want)
		}
	}
}

func TestPageOfEventsFromMemory(t *testing.T) {
	event := func(seq Seq, size int) Posted { return Posted{Event: Event{Seq: seq, Size: size}} }
	seen := Cursor{Epoch: 7, Seq: 2}
	for name, c := range map[string]struct {
		events []Posted
		want   int
		more   bool
		cursor Seq
	}{
		"events that the store has returned are left out": {[]Posted{event(1, 1), event(2, 1), event(3, 1)}, 1, false, 3},
		"nothing new":                   {[]Posted{event(2, 1)}, 0, false, 2},
		"as many as the limit":          {[]Posted{event(3, 1), event(4, 1), event(5, 1), event(6, 1)}, 3, true, 5},
		"as many bytes as a page holds": {[]Posted{event(3, PageBytes), event(4, 1)}, 1, true, 3},
		"always one event":              {[]Posted{event(3, PageBytes+1)}, 1, false, 3},
	} {
		page := pageFromMemory(c.events, seen, 3)
		if len(page.Events) != c.want || page.More != c.more || page.Cursor != (Cursor{7, c.cursor}) {
			t.Errorf("%s: %d events, more %v, cursor %v", name, len(page.Events), page.More, page.Cursor)
		}
	}
}

func TestParseOrigin(t *testing.T) {
	for text, want := range map[string]string{
		"https://relay.example": "https://relay.example", "https://relay.example/": "https://relay.example",
		"HTTPS://RELAY.example:443": "https://relay.example", "http://relay.example:80": "http://relay.example",
		"https://relay.example:80": "https://relay.example:80", "http://[::1]:8789": "http://[::1]:8789",
		"relay.example": "", "ftp://relay.example": "", "https://": "", "https://relay.example/path": "",
		"https://relay.example?q": "", "https://relay.example#f": "", "https://u@relay.example": "", "": "",
	} {
		got, err := ParseOrigin(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
}
