package bench

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is another process on this machine. A nil process uses nothing.
type process struct{ pid int }

// findProcess returns the process with this pid, or without one the process that listens at a loopback target; nil if
// there is none that may be looked into, or if it is this one, whose figures would be ours.
func findProcess(pid int, to target) *process {
	if pid == 0 && onLoopback(to.host) {
		if port, err := netip.ParseAddrPort("127.0.0.1" + to.address[strings.LastIndexByte(to.address, ':'):]); err == nil {
			pid = listener(port.Port())
		}
	}
	p := &process{pid}
	if pid == 0 || pid == os.Getpid() || p.rss() == 0 {
		return nil
	}
	return p
}

// listener returns the pid of the process that listens on a TCP port, 0 if it is not to be found.
func listener(port uint16) int {
	wanted := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			// sl, local address:port, remote, state (0A: listens), …, inode (proc(5))
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == "0A" && strings.HasSuffix(f[1], ":"+strings.ToUpper(hex.EncodeToString([]byte{byte(port >> 8), byte(port)}))) {
				wanted["socket:["+f[9]+"]"] = true
			}
		}
	}
	files, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil || len(wanted) == 0 {
		return 0
	}
	for _, file := range files {
		if link, err := os.Readlink(file); err == nil && wanted[link] {
			pid, _ := strconv.Atoi(strings.Split(file, "/")[2]) // digits, by the pattern
			return pid
		}
	}
	return 0
}

// ticks is the unit of /proc's CPU times, on every Linux.
const ticks = time.Second / 100

// cpu returns the CPU time the process has used, user and system.
func (p *process) cpu() time.Duration {
	if p == nil {
		return 0
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	if err != nil {
		return 0
	}
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]) // from the third on; the second may hold spaces
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(string(fields[11]), 10, 64)
	system, _ := strconv.ParseInt(string(fields[12]), 10, 64)
	return time.Duration(user+system) * ticks
}

// rss returns the memory of the process that is resident, in bytes.
func (p *process) rss() int64 {
	if p == nil {
		return 0
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.pid))
	if fields := strings.Fields(string(text)); err == nil && len(fields) > 1 {
		pages, _ := strconv.ParseInt(fields[1], 10, 64)
		return pages * int64(os.Getpagesize())
	}
	return 0
}

// OwnCPU returns the CPU time this process has used, which means the same on a machine that is busy with other things; 0
// where it is not known.
func OwnCPU() time.Duration {
	var use syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &use) != nil {
		return 0
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// sleepPrecisely sleeps without Go's timers, which a kernel that counts in milliseconds rounds up.
func sleepPrecisely(d time.Duration) {
	spec := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&spec, nil) // a signal may end it early: that is a post a moment before its time
}
