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
	"slices"
	"strings"
	"time"

	_ "modernc.org/sqlite" // registers the driver
)

// node is a running relay.
type node struct {
	command *exec.Cmd
	url     string
	data    string
	took    time.Duration // time from the start to the first answer 200
}

// limitless are the flags of a measured relay. They turn off its limits on posts, reads, connections, polls and
// inboxes. They also make threads wait for an answer for 24 hours. The load consists of REQUESTs that are never
// answered. With the default timeout of five minutes, the relay would sign a notice for each of them during the
// measurement.
var limitless = []string{"--post-rate-ip=0", "--read-rate-ip=0", "--post-rate-did=0", "--connections-per-ip=0",
	"--requests-per-ip=0", "--polls-per-ip=0", "--max-polls=0", "--inbox-events=0", "--inbox-bytes=0",
	"--pending-timeout=24h", "--log-level=error"}

// startNode starts a relay with its data in the folder data. It returns after the relay's first answer.
func startNode(ctx context.Context, binary, data string, flags ...string) (*node, error) {
	n := &node{
		command: exec.CommandContext(ctx, binary,
			slices.Concat([]string{"serve", "--addr=127.0.0.1:0", "--data", data}, limitless, flags)...),
		data: data,
	}
	n.command.Cancel = func() error { return n.command.Process.Signal(os.Interrupt) }
	n.command.Stderr = os.Stderr
	out, err := n.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := n.command.Start(); err != nil {
		return nil, fmt.Errorf("%w; run \"make build\" to build the binary", err)
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

// stop ends the relay with an interrupt signal, as an operator does.
func (n *node) stop() error {
	if err := n.command.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	return n.command.Wait()
}

// kill kills the relay's process. For the process this is like a power cut: it cannot do anything before it ends.
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

// get sends a GET request and returns the body of the answer. It returns an error if the status is not 200.
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

// size returns the size of the database in bytes. The relay must have ended.
func (n *node) size() (int64, error) {
	info, err := os.Stat(filepath.Join(n.data, "agora.db"))
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// bytesEach returns the bytes per event and per thread in the database, with indexes. The relay must have ended.
func (n *node) bytesEach(ctx context.Context) (event, thread float64, err error) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(n.data, "agora.db")+"?mode=ro")
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	const each = "SELECT (SELECT sum(pgsize) FROM dbstat " +
		"WHERE name IN (SELECT name FROM sqlite_schema WHERE tbl_name = ?1)) * 1.0 / "
	err = errors.Join(
		db.QueryRowContext(ctx, each+"(SELECT count(*) FROM event)", "event").Scan(&event),
		db.QueryRowContext(ctx, each+"(SELECT count(*) FROM thread)", "thread").Scan(&thread))
	return event, thread, err
}

// withNode calls f with a relay whose data is in a new folder. It then stops the relay and removes the folder.
func (p *perf) withNode(ctx context.Context, f func(*node) error, flags ...string) (err error) {
	data, err := os.MkdirTemp(p.temp, "agora-perf")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(data)) }()
	n, err := startNode(ctx, p.agora, data, flags...)
	if err != nil {
		return err
	}
	err = f(n)
	if n.command.ProcessState == nil { // f may already have ended the relay
		err = errors.Join(err, n.stop())
	}
	return err
}
