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

// process is another process on this machine. A nil *process reports no CPU time and no memory.
type process struct{ pid int }

// findProcess returns the process with this pid. If pid is 0 and the target is a loopback address without nodes, it
// returns the process that listens at the target. It returns nil if there is no such process, if the process cannot be
// inspected, or if it is this process, because its figures would include the generator.
func findProcess(pid int, to target) *process {
	if pid == 0 && to.nodes == nil && onLoopback(to.host) {
		if port, err := netip.ParseAddrPort(
			"127.0.0.1" + to.address[strings.LastIndexByte(to.address, ':'):],
		); err == nil {
			pid = findListener(port.Port())
		}
	}
	p := &process{pid}
	if pid == 0 || pid == os.Getpid() || p.rss() == 0 {
		return nil
	}
	return p
}

// findListener returns the pid of the process that listens on a TCP port, or 0 if it cannot be found.
func findListener(port uint16) int {
	wanted := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			// Fields: sl, local address:port, remote address:port, state (0A: listening), …, inode. See proc(5).
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == "0A" &&
				strings.HasSuffix(f[1], ":"+strings.ToUpper(hex.EncodeToString([]byte{byte(port >> 8), byte(port)}))) {
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
			pid, _ := strconv.Atoi(strings.Split(file, "/")[2]) // the pattern makes sure that it begins with a digit
			return pid
		}
	}
	return 0
}

// clockTick is the unit of CPU times in /proc. It is the same on every Linux.
const clockTick = time.Second / 100

// cpu returns the user and system CPU time that the process has used.
func (p *process) cpu() time.Duration {
	if p == nil {
		return 0
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	if err != nil {
		return 0
	}
	// The second field, the command in brackets, may contain spaces. So count from the third field on.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(string(fields[11]), 10, 64)
	system, _ := strconv.ParseInt(string(fields[12]), 10, 64)
	return time.Duration(user+system) * clockTick
}

// rss returns the resident memory of the process in bytes.
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

// written returns how many bytes the process has caused to be written to storage, 0 if that is not known.
func (p *process) written() (n int64) {
	if p == nil {
		return 0
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", p.pid))
	for line := range strings.Lines(string(text)) {
		if number, ok := strings.CutPrefix(line, "write_bytes: "); ok && err == nil {
			n, _ = strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		}
	}
	return n
}

// OwnCPU returns the user and system CPU time that this process has used. CPU time does not depend on what else the
// machine is doing. OwnCPU returns 0 if the CPU time is not known.
func OwnCPU() time.Duration {
	var use syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &use) != nil {
		return 0
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// sleepPrecisely sleeps for d without Go's timers, because some kernels round those up to whole milliseconds.
func sleepPrecisely(d time.Duration) {
	spec := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&spec, nil) // a signal may end the sleep early; then a post goes out slightly too early
}
