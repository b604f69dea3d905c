package program

import (
	"os"
	"os/exec"
	"testing"
)

// TestParentDies checks that a program ends when the process that runs it is killed.
func TestParentDies(t *testing.T) {
	o := options(t, "outer", nil)
	l := newLog()
	outer := exec.Command(o.Argv[0])
	outer.Env = o.Env
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outer.Stderr = write
	if err := outer.Start(); err != nil {
		t.Fatal(err)
	}
	_ = write.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		EachLine(read, l.add)
	}()
	pid := <-l.ready
	if pid == outer.Process.Pid {
		t.Fatal("the program is not another process")
	}
	_ = outer.Process.Kill()
	_ = outer.Wait() // it was killed
	gone(t, pid)
	<-ended
	_ = read.Close()
}
