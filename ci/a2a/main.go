// Command a2a is an A2A client and an A2A server that know nothing of Agora. Both use a2a-go, the SDK of the A2A
// project.
//
//	go -C ci/a2a run . serve
//	go -C ci/a2a run . call BASE [input]
//	go -C ci/a2a run . say BASE TEXT
//
// serve prints the URL at which it listens. call checks an endpoint whose agent does what serve does, in both bindings.
// BASE is the endpoint's URL, with the slash; the environment variable A2A_KEY has the key, or is empty if everybody
// may call. input says that the agent can ask for input. call prints what is wrong, and then fails. say sends a text to
// any agent, and prints the text of the result. The first word of a message of call says what the agent does:
//
//	echo TEXT    an artifact with the text
//	chunks A B   an artifact in pieces: A, then B
//	hold         it works until the task is canceled
//	ask          it asks "what?", and echoes the answer
//
// sdk/js/test has the same client and server in JavaScript. The command is a separate module, so that Agora does not
// depend on a2a-go. make a2a uses it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	err := errors.New("usage: a2a serve, a2a call BASE [input], or a2a say BASE TEXT")
	switch args := os.Args[1:]; {
	case len(args) == 1 && args[0] == "serve":
		err = serve()
	case len(args) >= 2 && args[0] == "call":
		err = call(ctx, args[1], os.Getenv("A2A_KEY"), len(args) == 3 && args[2] == "input")
	case len(args) == 3 && args[0] == "say":
		err = say(ctx, args[1], os.Getenv("A2A_KEY"), args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "a2a:", err)
		os.Exit(1)
	}
}
