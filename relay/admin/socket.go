package admin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// Listen creates the socket in a data folder, which must be locked by this process. The socket is made in a new folder
// that only this user can enter, and then moved into place. So at no time can others connect, whatever the umask is. A
// socket that a killed relay has left is replaced. Other files, and sockets on which somebody listens, are not.
//
// Closing the listener removes the socket, unless another one is there by then.
func Listen(folder string) (net.Listener, error) {
	path := filepath.Join(folder, Path)
	if err := checkAbandoned(path); err != nil {
		return nil, err
	}
	private, err := os.MkdirTemp(folder, ".admin-") // mode 0700
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(private) // what is left is an empty folder
	made := filepath.Join(private, "s")
	l, err := listenAt(made)
	if err != nil {
		return nil, fmt.Errorf("cannot create the admin socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	err = os.Chmod(made, 0o600)
	if err == nil {
		err = os.Rename(made, path)
	}
	info, statErr := os.Lstat(path)
	if err = errors.Join(err, statErr); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &listener{UnixListener: l, path: path, made: info}, nil
}

// checkAbandoned returns an error if there is something at path that must not be replaced.
func checkAbandoned(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is not a socket; move it away, because the relay needs this name", path)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := dialAt(ctx, path)
	if err != nil {
		return nil
	}
	return errors.Join(fmt.Errorf("another process listens on %s; stop it first", path), c.Close())
}

// listener accepts only connections of the relay's own user and of root.
type listener struct {
	*net.UnixListener
	path  string
	made  fs.FileInfo
	close sync.Once
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if isOwn(c) {
			return c, nil
		}
		_ = c.Close() // nothing was sent
	}
}

// Close implements net.Listener.
func (l *listener) Close() (err error) {
	l.close.Do(func() {
		if now, failed := os.Lstat(l.path); failed == nil && os.SameFile(now, l.made) {
			err = os.Remove(l.path)
		}
		err = errors.Join(err, l.UnixListener.Close())
	})
	return err
}

// boundedListener limits the open connections. Further ones wait in the queue of the system.
type boundedListener struct {
	net.Listener
	slots chan struct{}
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	l.slots <- struct{}{}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &boundedConn{Conn: c, free: sync.OnceFunc(func() { <-l.slots })}, nil
}

type boundedConn struct {
	net.Conn
	free func()
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	defer c.free()
	return c.Conn.Close()
}

type callerKey struct{}

// withCaller adds to the context of a connection which user has opened it.
func withCaller(ctx context.Context, c net.Conn) context.Context {
	if bounded, ok := c.(*boundedConn); ok {
		c = bounded.Conn
	}
	if unix, ok := c.(*net.UnixConn); ok {
		if uid, known := userOf(unix); known {
			return context.WithValue(ctx, callerKey{}, strconv.Itoa(uid))
		}
	}
	return ctx
}

// callerOf returns the number of the user who sends a request, or "unknown".
func callerOf(ctx context.Context) string {
	if uid, known := ctx.Value(callerKey{}).(string); known {
		return uid
	}
	return "unknown"
}

// NotAllowed is the error of a client that may not govern the relay at a data folder.
type NotAllowed struct{ Folder string }

func (e NotAllowed) Error() string {
	return "only the user of the relay, and root, may govern the relay at the data folder " + e.Folder +
		"; run the command as that user, such as: sudo -u agora agora admin …"
}

// Dial connects to the relay that runs at a data folder. Errors: *NotRunning, NotAllowed.
func Dial(ctx context.Context, folder string) (net.Conn, error) {
	c, err := dialAt(ctx, filepath.Join(folder, Path))
	if errors.Is(err, fs.ErrPermission) {
		return nil, NotAllowed{folder}
	}
	if err != nil {
		return nil, &NotRunning{folder, err}
	}
	return c, nil
}

// maxSocketPath is the longest path of a Unix socket, in bytes, that all systems allow.
const maxSocketPath = 103

// listenAt and dialAt work with paths of any length, as far as the system allows it.
func listenAt(path string) (l *net.UnixListener, err error) {
	err = withShortPath(path, func(short string) error {
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
		return err
	})
	return l, err
}

func dialAt(ctx context.Context, path string) (c net.Conn, err error) {
	err = withShortPath(path, func(short string) error {
		c, err = new(net.Dialer).DialContext(ctx, "unix", short)
		return err
	})
	return c, err
}
