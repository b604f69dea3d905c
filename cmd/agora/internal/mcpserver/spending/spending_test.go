package spending_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/mcpserver/spending"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway/jobs/credits"
)

const usd = credits.One

// identity writes a new key file and returns its name and its DID.
func identity(t *testing.T) (file string, did didkey.DID) {
	t.Helper()
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "alice.key")
	if err := didkey.Save(file, key); err != nil {
		t.Fatal(err)
	}
	return file, key.DID()
}

// open returns a new book with these limits.
func open(t *testing.T, limits spending.Limits, now func() time.Time) (book *spending.Book, keyFile string) {
	t.Helper()
	keyFile, did := identity(t)
	book, err := spending.Open(keyFile, did, now)
	if err == nil {
		err = book.SetLimits(t.Context(), func(l *spending.Limits) { *l = limits })
	}
	if err != nil {
		t.Fatal(err)
	}
	return book, keyFile
}

func price(amount float64) *envelope.Price { return &envelope.Price{Amount: amount, Currency: "USD"} }

// job returns a job with its own thread.
func job(n int, amount float64) spending.Job {
	return spending.Job{Relay: "http://relay", Thread: fmt.Sprint("thread", n), Offer: fmt.Sprint("offer", n), Agent: "did:key:zAgent",
		Intent: "text.echo", Price: price(amount)}
}

func reserved(t *testing.T, b *spending.Book) credits.Amount {
	t.Helper()
	s, err := b.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Reserved
}

// TestWhatIsAllowed checks each reason to refuse a job.
func TestWhatIsAllowed(t *testing.T) {
	_, agent := identity(t)
	limits := spending.Limits{PerJob: usd / 2, PerDay: usd, Intents: []string{"text.echo", "image.*"}, Agents: []didkey.DID{agent}}
	good := spending.Job{Thread: "t", Offer: "o", Agent: agent, Intent: "text.echo", Price: price(0.5)}
	with := func(change func(*spending.Job)) spending.Job {
		j := good
		change(&j)
		return j
	}
	for name, test := range map[string]struct {
		job     spending.Job
		refused string // part of the error; empty: allowed
	}{
		"as much as allowed": {good, ""},
		"not a number":       {with(func(j *spending.Job) { j.Price = price(math.NaN()) }), "price"},
		"infinite":           {with(func(j *spending.Job) { j.Price = price(math.Inf(1)) }), "price"},
		"no price":           {with(func(j *spending.Job) { j.Price = nil }), ""},
		"a price of 0 EUR":   {with(func(j *spending.Job) { j.Price = &envelope.Price{Currency: "EUR"} }), ""},
		"usd":                {with(func(j *spending.Job) { j.Price = &envelope.Price{Amount: 0.1, Currency: "usd"} }), ""},
		"prefix":             {with(func(j *spending.Job) { j.Intent = "image.draw" }), ""},
		"a millionth more":   {with(func(j *spending.Job) { j.Price = price(0.500001) }), "limit of a job"},
		"a tiny bit more":    {with(func(j *spending.Job) { j.Price = price(0.5000005) }), "price"},
		"negative":           {with(func(j *spending.Job) { j.Price = price(-5) }), "price"},
		"huge":               {with(func(j *spending.Job) { j.Price = price(1e300) }), "price"},
		"another currency":   {with(func(j *spending.Job) { j.Price = &envelope.Price{Amount: 0.1, Currency: "EUR"} }), "currency"},
		"no currency":        {with(func(j *spending.Job) { j.Price = &envelope.Price{Amount: 0.1} }), "currency"},
		"another intent":     {with(func(j *spending.Job) { j.Intent = "text.echo2" }), "intent"},
		"another agent":      {with(func(j *spending.Job) { j.Agent = "did:key:zOther" }), "agent"},
		"free, other agent":  {with(func(j *spending.Job) { j.Agent, j.Price = "did:key:zOther", nil }), "agent"},
	} {
		book, _ := open(t, limits, nil)
		checked := book.Check(t.Context(), test.job)
		if reserved(t, book) != 0 {
			t.Errorf("%s: Check reserves something", name)
		}
		_, err := book.Reserve(t.Context(), test.job)
		if fmt.Sprint(checked) != fmt.Sprint(err) {
			t.Errorf("%s: Check returns %v", name, checked)
		}
		if test.refused == "" && err != nil ||
			test.refused != "" && (!errors.Is(err, spending.ErrLimit) || !strings.Contains(err.Error(), test.refused)) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && reserved(t, book) != 0 {
			t.Errorf("%s: something is reserved", name)
		}
	}
}

// TestZeroLimits checks that a new book allows only what is free, and that a price below a millionth is not free.
func TestZeroLimits(t *testing.T) {
	keyFile, did := identity(t)
	book, err := spending.Open(keyFile, did, nil)
	if err != nil {
		t.Fatal(err)
	}
	for amount, want := range map[float64]bool{0: true, 1e-6: false, 1e-12: false, 1: false} {
		if _, err := book.Reserve(t.Context(), job(1, amount)); (err == nil) != want {
			t.Errorf("a price of %v: %v", amount, err)
		}
	}
}

// TestDay checks that the sum of 24 hours is limited, whatever the clock does.
func TestDay(t *testing.T) {
	now := time.Date(2030, 1, 1, 23, 59, 0, 0, time.UTC)
	book, _ := open(t, spending.Limits{PerJob: usd, PerDay: usd}, func() time.Time { return now })
	reserve := func(n int, amount float64) error {
		_, err := book.Reserve(t.Context(), job(n, amount))
		return err
	}
	if err := reserve(1, 0.6); err != nil {
		t.Fatal(err)
	}
	if err := reserve(2, 0.5); !errors.Is(err, spending.ErrLimit) {
		t.Errorf("more than the limit of a day: %v", err)
	}
	now = now.Add(2 * time.Minute) // a new date is not a new day
	if err := reserve(3, 0.5); !errors.Is(err, spending.ErrLimit) {
		t.Errorf("after midnight: %v", err)
	}
	now = now.Add(-100 * time.Hour) // the clock is set back
	if err := reserve(4, 0.5); !errors.Is(err, spending.ErrLimit) {
		t.Errorf("after the clock was set back: %v", err)
	}
	now = now.Add(100*time.Hour + spending.Day)
	if err := reserve(5, 1); err != nil {
		t.Errorf("a day later: %v", err)
	}
	now = now.Add(-3 * time.Minute) // so the first job was less than a day ago
	if got := reserved(t, book); got != usd*16/10 {
		t.Errorf("after the clock was fast for a while, %v are reserved", got)
	}
}

// TestAttempts checks how reservations for the same thread count.
func TestAttempts(t *testing.T) {
	ctx := t.Context()
	book, keyFile := open(t, spending.Limits{PerJob: usd, PerDay: 2 * usd}, nil)
	for range 2 { // the second time as after an unknown outcome
		if got, err := book.Reserve(ctx, job(1, 0.7)); err != nil || got != usd*7/10 {
			t.Fatalf("reserved %v: %v", got, err)
		}
	}
	if got := reserved(t, book); got != usd*7/10 {
		t.Errorf("two attempts for one offer count %v", got)
	}
	for name, change := range map[string]func(*spending.Job){
		"another offer":                  func(j *spending.Job) { j.Offer = "another" },
		"another agent's, same id":       func(j *spending.Job) { j.Agent = "did:key:zOther" },
		"the same offer, changed to 1.1": func(j *spending.Job) { j.Price = price(1.1) },
	} {
		other := job(1, 0.4)
		change(&other)
		if _, err := book.Reserve(ctx, other); !errors.Is(err, spending.ErrLimit) {
			t.Errorf("%s in the same thread: %v", name, err)
		}
	}
	for _, wrong := range [][3]string{{"http://other", "thread1", "did:key:zAgent"}, {"http://relay", "thread2", "did:key:zAgent"},
		{"http://relay", "thread1", "did:key:zOther"}} {
		if err := book.Release(ctx, wrong[0], wrong[1], didkey.DID(wrong[2])); err != nil || reserved(t, book) != usd*7/10 {
			t.Errorf("the release of %v: %v", wrong, err)
		}
	}
	link := filepath.Join(t.TempDir(), "link.key")
	if err := os.Symlink(keyFile, link); err != nil {
		t.Fatal(err)
	}
	linked, err := spending.Open(link, didOf(t, keyFile), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := reserved(t, linked); got != usd*7/10 {
		t.Errorf("through a symbolic link %v are reserved", got)
	}
	if err := book.Release(ctx, "http://relay", "thread1", "did:key:zAgent"); err != nil || reserved(t, book) != 0 {
		t.Errorf("after the release %v are reserved: %v", reserved(t, book), err)
	}
}

func didOf(t *testing.T, keyFile string) didkey.DID {
	t.Helper()
	key, err := didkey.Load(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	return key.DID()
}

// TestRace checks that programs that reserve at the same time stay within the limits together. Each has its own Book.
func TestRace(t *testing.T) {
	book, keyFile := open(t, spending.Limits{PerJob: usd / 10, PerDay: usd}, nil)
	var allowed atomic.Int64
	var all sync.WaitGroup
	for n := range 40 {
		all.Go(func() {
			own, err := spending.Open(keyFile, didOf(t, keyFile), nil)
			if err != nil {
				t.Error(err)
				return
			}
			switch _, err := own.Reserve(t.Context(), job(n, 0.1)); {
			case err == nil:
				allowed.Add(1)
			case !errors.Is(err, spending.ErrLimit):
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := reserved(t, book); allowed.Load() != 10 || got != usd {
		t.Errorf("%d jobs are allowed, and %v USD reserved", allowed.Load(), got)
	}
}

// TestBadFiles checks that a file that cannot be trusted allows nothing.
func TestBadFiles(t *testing.T) {
	_, stranger := identity(t)
	for name, text := range map[string]string{
		"empty":            "",
		"cut":              `{"did":"DID","limits":{"per_job_usd":1`,
		"unknown limit":    `{"did":"DID","limits":{"per_job_usd":1,"per_day_usd":1,"agent":["x"]}}`,
		"negative":         `{"did":"DID","limits":{"per_job_usd":-1,"per_day_usd":1}}`,
		"another identity": `{"did":"` + string(stranger) + `","limits":{"per_job_usd":1,"per_day_usd":1}}`,
	} {
		keyFile, did := identity(t)
		text = strings.ReplaceAll(text, "DID", string(did))
		if err := os.WriteFile(keyFile+".spending", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		book, err := spending.Open(keyFile, did, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := book.Reserve(t.Context(), job(1, 0)); err == nil || errors.Is(err, spending.ErrLimit) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSetLimits checks that wrong limits are refused, and that others cannot read the file.
func TestSetLimits(t *testing.T) {
	book, keyFile := open(t, spending.Limits{PerJob: 1}, nil)
	for name, wrong := range map[string]spending.Limits{
		"negative job": {PerJob: -1}, "negative day": {PerDay: -1}, "agent": {Agents: []didkey.DID{"bob"}},
		"empty intent": {Intents: []string{""}}, "star inside": {Intents: []string{"a*b"}},
	} {
		if err := book.SetLimits(t.Context(), func(l *spending.Limits) { *l = wrong }); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	s, err := book.Status(t.Context())
	if err != nil || s.Limits.PerJob != 1 {
		t.Errorf("the limits have become %+v: %v", s.Limits, err)
	}
	info, err := os.Stat(keyFile + ".spending")
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v: %v", info.Mode(), err)
	}
}

// TestKill kills programs that reserve, and checks that what they were allowed is reserved.
func TestKill(t *testing.T) {
	if file := os.Getenv("AGORA_TEST_SPENDING"); file != "" {
		reserveUntilKilled(t, file)
	}
	book, keyFile := open(t, spending.Limits{PerJob: usd, PerDay: 1000 * usd}, nil)
	allowed := 0
	for range 5 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKill$", "-test.v")
		cmd.Env = append(os.Environ(), "AGORA_TEST_SPENDING="+keyFile)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, 1<<10)
		for seen := 0; seen < 20; {
			n, err := out.Read(buffer)
			if err != nil {
				t.Fatal(err)
			}
			count := strings.Count(string(buffer[:n]), "reserved\n")
			seen += count
			allowed += count
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
	}
	s, err := book.Status(t.Context())
	if err != nil || len(s.Jobs) < allowed {
		t.Errorf("%d reservations are in the book, and %d were made: %v", len(s.Jobs), allowed, err)
	}
}

func reserveUntilKilled(t *testing.T, keyFile string) {
	book, err := spending.Open(keyFile, didOf(t, keyFile), nil)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 1_000_000 {
		if _, err := book.Reserve(context.Background(), job(os.Getpid()<<20+n, 0.001)); err != nil {
			t.Fatal(err)
		}
		fmt.Println("reserved")
	}
}
