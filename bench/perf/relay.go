package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	_ "modernc.org/sqlite" // registers the driver
)

// node is a running relay.
type node struct {
	command *exec.Cmd
	url     string
	data    string
	took    time.Duration // from its start until its first answer 200
}

// limitless are the settings of a relay that is to show what it can do. What others may ask is not limited, and no thread
// ends while it is measured: the load consists of REQUESTs that nobody answers, and after five minutes the relay would
// sign a notice for each.
var limitless = []string{"--post-rate-ip=0", "--read-rate-ip=0", "--post-rate-did=0", "--connections-per-ip=0", "--requests-per-ip=0",
	"--polls-per-ip=0", "--max-polls=0", "--inbox-events=0", "--inbox-bytes=0", "--pending-timeout=24h", "--log-level=error"}

// startNode starts a relay over data and returns when it has answered.
func startNode(ctx context.Context, binary, data string) (*node, error) {
	n := &node{command: exec.CommandContext(ctx, binary, append([]string{"serve", "--addr=127.0.0.1:0", "--data", data}, limitless...)...), data: data}
	n.command.Cancel = func() error { return n.command.Process.Signal(os.Interrupt) }
	n.command.Stderr = os.Stderr
	out, err := n.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := n.command.Start(); err != nil {
		return nil, fmt.Errorf("%w; make build makes it", err)
	}
	lines := bufio.NewScanner(out)
	for n.url == "" && lines.Scan() {
		n.url, _ = strings.CutPrefix(lines.Text(), "listening on ")
		if n.url == lines.Text() {
			n.url = ""
		}
	}
	if n.url == "" {
		return nil, errors.Join(errors.New("the relay did not start"), lines.Err(), n.command.Wait())
	}
	if _, err := n.get(http.DefaultClient, "/events?cursor=0&limit=1&timeout=0"); err != nil {
		return nil, errors.Join(err, n.stop())
	}
	n.took = time.Since(began)
	return n, nil
}

// stop ends the relay as an operator does.
func (n *node) stop() error {
	if err := n.command.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	return n.command.Wait()
}

// kill ends it as a power cut does, as far as the process is concerned.
func (n *node) kill() error {
	if err := n.command.Process.Kill(); err != nil {
		return err
	}
	err := n.command.Wait()
	if _, killed := errors.AsType[*exec.ExitError](err); killed {
		return nil
	}
	return err
}

func (n *node) pid() int { return n.command.Process.Pid }

// get returns the body of an answer 200.
func (n *node) get(c *http.Client, path string) ([]byte, error) {
	answer, err := c.Get(n.url + path)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: status %d %.200s", path, answer.StatusCode, body)
	}
	return body, err
}

// size returns the bytes of the database of a relay that has ended.
func (n *node) size() (int64, error) {
	info, err := os.Stat(filepath.Join(n.data, "agora.db"))
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// bytesEach returns what an event and a thread take in the database of a relay that has ended, indexes included.
func (n *node) bytesEach(ctx context.Context) (event, thread float64, err error) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(n.data, "agora.db")+"?mode=ro")
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	const each = "SELECT (SELECT sum(pgsize) FROM dbstat WHERE name IN (SELECT name FROM sqlite_schema WHERE tbl_name = ?1)) * 1.0 / "
	err = errors.Join(
		db.QueryRowContext(ctx, each+"(SELECT count(*) FROM event)", "event").Scan(&event),
		db.QueryRowContext(ctx, each+"(SELECT count(*) FROM thread)", "thread").Scan(&thread))
	return event, thread, err
}

// withNode runs f with a relay over a new folder, which is removed afterwards.
func (p *perf) withNode(ctx context.Context, f func(*node) error) (err error) {
	data, err := os.MkdirTemp(p.temp, "agora-perf")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(data)) }()
	n, err := startNode(ctx, p.agora, data)
	if err != nil {
		return err
	}
	err = f(n)
	if n.command.ProcessState == nil { // f may have ended it
		err = errors.Join(err, n.stop())
	}
	return err
}
