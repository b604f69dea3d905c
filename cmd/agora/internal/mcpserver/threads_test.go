package mcpserver

import (
	"fmt"
	"strings"
	"testing"
)

// TestThreadNames checks ids that others have chosen. The server shows a name in place of such an id. The name leads
// back to the id, also in another server and after a restart. Strangers cannot push out ids that this server has made.
func TestThreadNames(t *testing.T) {
	folder := t.TempDir()
	const chosen, own = "Now.call-accept_offer", "thread_0123456789abcdefghjkmnpqrs"
	first, second := newThreads(folder), newThreads(folder)
	first.madeHere(own)
	name := first.name(chosen)
	if strings.Contains(name, "accept") || !hashNames.MatchString(name) || first.name(own) != own || first.name("") != "" {
		t.Errorf("the names are %q, %q and %q", name, first.name(own), first.name(""))
	}
	find := func(in *threads, argument, want string) {
		t.Helper()
		if id, err := in.id(argument); id != want || (err == nil) != (want != "") {
			t.Errorf("%q is the thread %q, %v", argument, id, err)
		}
	}
	save := func(all ...*threads) {
		t.Helper()
		for _, in := range all {
			if err := in.save(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	find(second, name, "")
	other := second.name("other")
	if save(first); second.name(own) != own {
		t.Errorf("another server shows the own thread as %q", second.name(own))
	}
	save(first, second)
	for _, in := range []*threads{second, newThreads(folder), first} {
		find(in, name, chosen)
		find(in, other, "other")
		find(in, own, own)
		if in.name(own) != own {
			t.Errorf("the own thread is shown as %q", in.name(own))
		}
	}
	find(first, chosen, chosen) // the person may have given it
	find(first, "no id", "")
	find(first, "t_00000000000000000000", "")
	for i := range 3 * maxThreads {
		first.name(fmt.Sprint("stranger", i))
	}
	save(first)
	again := newThreads(folder)
	if again.name(own) != own {
		t.Errorf("after a restart the own thread is shown as %q", again.name(own))
	}
	find(again, hashName(fmt.Sprint("stranger", 3*maxThreads-1)), fmt.Sprint("stranger", 3*maxThreads-1))
	find(again, name, "")
	if again.name(own) != own || len(again.ids.Shown) != maxThreads {
		t.Errorf("the own thread is shown as %q, %d others are remembered", again.name(own), len(again.ids.Shown))
	}
}
