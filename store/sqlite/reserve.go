package sqlite

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// reserve is a file that takes up disk space for emergencies: on a full disk SQLite cannot even delete rows. The file
// is deleted when the disk is full, and created again afterwards. Its bytes are random, so that a compressing file
// system cannot shrink it.
type reserve struct {
	path    string
	wanted  int64 // bytes, as configured
	largest int64 // bytes, the largest size it had
}

const (
	// reserveStep is how many bytes one tick adds, so that a start does not keep the disk busy.
	reserveStep = 4 << 20
	// minReserve is the smallest size that helps.
	minReserve = 64 << 10
)

func fileSize(path string) (int64, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// target returns how large the reserve should be: the configured size, or an eighth of the free space on a small disk.
// The reserve itself counts as free space.
func (r *reserve) target() (bytes int64, err error) {
	have, err := fileSize(r.path)
	if err != nil {
		return 0, err
	}
	r.largest = max(r.largest, have)
	if room, known := diskRoom(filepath.Dir(r.path)); known {
		return max(have, min(r.wanted, (room+have)/8)), nil
	}
	return r.wanted, nil
}

// grow appends to the file until it has to bytes.
func (r *reserve) grow(to int64) (err error) {
	file, err := os.OpenFile(r.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	random := make([]byte, 64<<10)
	for have := info.Size(); have < to; have += int64(len(random)) {
		random = random[:min(int64(len(random)), to-have)]
		rand.Read(random) // never fails (crypto/rand)
		if _, err := file.Write(random); err != nil {
			return err
		}
	}
	r.largest = max(r.largest, to)
	return nil
}

// release deletes the file, which frees its disk space.
func (r *reserve) release() error {
	if err := os.Remove(r.path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// restore creates the reserve again at its largest size so far. If the disk has less than twice that space, it halves
// the size until the same space remains free for the write-ahead log. Errors: errDiskFull if not even the smallest size
// fits.
func (r *reserve) restore() error {
	have, err := fileSize(r.path)
	if err != nil {
		return err
	}
	least := min(minReserve, r.wanted)
	for size := max(r.largest, least); size >= least; size /= 2 {
		if room, known := diskRoom(filepath.Dir(r.path)); known && room+have < 2*size {
			continue
		}
		if have > size {
			return os.Truncate(r.path, size)
		}
		if err := r.grow(size); !errors.Is(err, syscall.ENOSPC) {
			return err
		}
		if err := r.release(); err != nil {
			return err
		}
		have = 0
	}
	return errDiskFull
}
