package main

import (
	"fmt"
	"strings"

	"github.com/agora-relay/agora/envelope"
)

// by says in words who may send a message, for PROTOCOL §4.
var by = map[envelope.Role]string{
	envelope.RoleOpener:  "anyone",
	envelope.RoleOfferer: "any agent, or only the named one; not the client",
	envelope.RoleClient:  "the client",
	envelope.RoleAgent:   "the accepted agent",
	envelope.RoleParty:   "the client, the accepted agent, the named recipient, or an agent with an open offer",
}

func typesMarkdown(t tables) string {
	var b strings.Builder
	b.WriteString("| message | by | state before | state after | `payload` needs | `payload.request_id` |\n|---|---|---|---|---|---|\n")
	for _, row := range t.Types {
		if row.Before == nil {
			continue
		}
		needs := "`" + strings.Join(row.Needs, "`, `") + "`"
		if row.Needs == nil {
			needs = "—"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", row.Type, by[row.By], strings.Join(stringsOf(row.Before), ", "),
			row.After, needs, row.ID)
	}
	return b.String()
}

func codesMarkdown(t tables) string {
	var b strings.Builder
	b.WriteString("| code | status | retryable | when |\n|---|---|---|---|\n")
	for _, row := range t.Codes {
		retryable := "no"
		if row.Retryable {
			retryable = "yes"
		}
		fmt.Fprintf(&b, "| `%s` | %d | %s | %s |\n", row.Code, row.Status, retryable, row.Text)
	}
	return b.String()
}

func filtersMarkdown(t tables) string {
	var b strings.Builder
	for _, row := range t.Filters {
		fmt.Fprintf(&b, "- `%s`: %s\n", row.Name, row.Text)
	}
	return b.String()
}

func limitsMarkdown(t tables) string {
	var b strings.Builder
	b.WriteString("| `details.limit` | limit |\n|---|---|\n")
	for _, row := range t.Limits {
		number := fmt.Sprint(int(row.Default))
		if len(number) > 4 {
			number = number[:len(number)-3] + " " + number[len(number)-3:]
		}
		text := number + " " + row.Text
		if row.BurstFactor > 0 {
			text += fmt.Sprintf(", after %v at once", row.Default*row.BurstFactor)
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", row.Name, text)
	}
	return b.String()
}

// selected returns the codes of the rows that match, for the sets of codes in other languages.
func selected(t tables, match func(envelope.CodeInfo) bool) (codes []string) {
	for _, row := range t.Codes {
		if match(row) {
			codes = append(codes, string(row.Code))
		}
	}
	return codes
}

// sets are the sets of names that the packages in other languages have, in the order in which they are written.
func sets(t tables) (names []string, values map[string][]string) {
	values = map[string][]string{
		"states":  stringsOf(t.States),
		"settles": selected(t, func(r envelope.CodeInfo) bool { return r.Settles }),
		"movedOn": selected(t, func(r envelope.CodeInfo) bool { return r.MovedOn }),
	}
	for _, row := range t.AgentCodes {
		if row.Retryable {
			values["agentRetryable"] = append(values["agentRetryable"], string(row.Code))
		}
	}
	return []string{"states", "settles", "movedOn", "agentRetryable"}, values
}

// list returns values as a list in the syntax of both languages.
func list(values []string, quote string) string {
	if len(values) == 0 {
		return "[]"
	}
	return "[" + quote + strings.Join(values, quote+", "+quote) + quote + "]"
}

func javaScript(t tables) string {
	var b strings.Builder
	b.WriteString("export const protocol = {\n  types: {\n")
	for _, row := range t.Types {
		fmt.Fprintf(&b, "    %s: { by: '%s', clear: %s },\n", row.Type, row.By, list(row.Clear, "'"))
	}
	b.WriteString("  },\n")
	names, values := sets(t)
	for _, name := range names {
		fmt.Fprintf(&b, "  %s: %s,\n", name, list(values[name], "'"))
	}
	b.WriteString("  status: {\n")
	for _, row := range t.Codes {
		fmt.Fprintf(&b, "    %s: %d,\n", row.Code, row.Status)
	}
	fmt.Fprintf(&b, "  },\n  defaultTtl: %v,\n  draftTtl: %v,\n};\n", t.DefaultTTL, t.DraftTTL)
	return b.String()
}

// python returns the module in the form that the formatter of the package makes.
func python(t tables) string {
	var b strings.Builder
	b.WriteString("TYPES: dict[str, set[str]] = {\n")
	for _, row := range t.Types {
		clear := "set()"
		if row.Clear != nil {
			clear = `{"` + strings.Join(row.Clear, `", "`) + `"}`
		}
		fmt.Fprintf(&b, "    %q: %s,\n", row.Type, clear)
	}
	b.WriteString("}\n\"\"\"Every type of a message, with the members of its payload that sealing leaves readable.\"\"\"\n\n")
	docs := map[string]string{
		"states":         "The states of a thread.",
		"settles":        "Refusals which prove that the relay has stored no earlier attempt with the same bytes (PROTOCOL §3).",
		"movedOn":        "Refusals of an agent's message which mean that the thread has changed since the agent has read it.",
		"agentRetryable": "Codes of agents after which a new request may succeed.",
	}
	pythonNames := map[string]string{"states": "STATES", "settles": "SETTLES", "movedOn": "MOVED_ON", "agentRetryable": "AGENT_RETRYABLE"}
	names, values := sets(t)
	for _, name := range names {
		fmt.Fprintf(&b, "%s = %s\n\"\"\"%s\"\"\"\n\n", pythonNames[name], list(values[name], `"`), docs[name])
	}
	b.WriteString("STATUS = {\n")
	for _, row := range t.Codes {
		fmt.Fprintf(&b, "    %q: %d,\n", row.Code, row.Status)
	}
	b.WriteString("}\n\"\"\"Every code of a relay, with its HTTP status.\"\"\"\n\n")
	fmt.Fprintf(&b, "DEFAULT_TTL = %.0f\n\"\"\"Seconds that a message without meta.ttl is kept.\"\"\"\n\n", t.DefaultTTL)
	fmt.Fprintf(&b, "DRAFT_TTL = %.0f\n\"\"\"Seconds that a message is kept by default, long enough for an agent that is offline overnight.\"\"\"\n", t.DraftTTL)
	return b.String()
}
