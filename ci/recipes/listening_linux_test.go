package recipes

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// listeners returns the addresses of the TCP sockets that the processes of a session listen on, as /proc shows them.
func listeners(t *testing.T, session int) (addresses []string) {
	t.Helper()
	inodes := map[string]string{} // inode of a listening socket → its address
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if os.IsNotExist(err) && table == "/proc/net/tcp6" {
			continue // there is no IPv6
		}
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) > 9 && fields[3] == "0A" { // TCP_LISTEN
				inodes["socket:["+fields[9]+"]"] = fields[1]
			}
		}
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue // the process has ended
		}
		_, rest, _ := strings.Cut(string(text), ") ") // the name of the program is in brackets
		fields := strings.Fields(rest)                // state, parent, group, session, …
		if len(fields) < 4 || fields[3] != strconv.Itoa(session) {
			continue
		}
		descriptors, err := filepath.Glob(filepath.Join(filepath.Dir(stat), "fd", "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range descriptors {
			if to, err := os.Readlink(fd); err == nil && inodes[to] != "" {
				addresses = append(addresses, inodes[to])
			}
		}
	}
	return addresses
}

// TestListeners checks that listeners sees a listening socket.
func TestListeners(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	session, err := unix.Getsid(0)
	if err != nil {
		t.Fatal(err)
	}
	if len(listeners(t, session)) == 0 {
		t.Error("no listening socket is found")
	}
}
