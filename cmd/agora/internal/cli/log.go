package cli

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// lineHandler is a slog.Handler that prints the client's warnings as lines for people. If a line repeats the last one,
// it is printed only once a minute. So a relay that stays unreachable does not flood the terminal.
type lineHandler struct {
	env   Environment
	attrs []slog.Attr
	last  *lastLine // shared by all copies of the handler
}

type lastLine struct {
	mu   sync.Mutex
	text string
	at   time.Time
}

// repeatInterval is the time after which an unchanged line is printed again.
const repeatInterval = time.Minute

// NewLog returns a log that prints warnings to standard error.
func NewLog(env Environment) *slog.Logger {
	return slog.New(lineHandler{env: env, last: new(lastLine)})
}

func (lineHandler) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (h lineHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.attrs = append(h.attrs[:len(h.attrs):len(h.attrs)], attrs...)
	return h
}

func (h lineHandler) WithGroup(string) slog.Handler { return h }

func (h lineHandler) Handle(_ context.Context, r slog.Record) error {
	reason, details := "", []string(nil)
	add := func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok {
			reason += ": " + ExplainDial(err).Error()
		} else {
			details = append(details, fmt.Sprintf("%s %v", a.Key, a.Value))
		}
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	text := r.Message
	if len(details) > 0 {
		text += " (" + strings.Join(details, ", ") + ")"
	}
	text += reason
	h.last.mu.Lock()
	defer h.last.mu.Unlock()
	if now := time.Now(); text != h.last.text || now.Sub(h.last.at) >= repeatInterval {
		h.last.text, h.last.at = text, now
		h.env.Say("%s", text)
	}
	return nil
}
