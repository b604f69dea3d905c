package sqlite

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// reserve is a file that holds room on the disk. Without any room SQLite cannot remove anything either. The file is
// removed when the disk is full and made again afterwards. Its bytes are random, so that a file system that compresses
// holds as many.
type reserve struct {
	path   string
	wanted int64 // bytes
	stood  int64 // the most it had
}

const (
	// reserveStep is how much it grows at a time, so that a start does not keep the disk busy.
	reserveStep = 4 << 20
	// minReserve is the least that helps.
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

// target returns how large the reserve is to be: as wanted, or an eighth of what there is on a small disk.
func (r *reserve) target() (bytes int64, err error) {
	have, err := fileSize(r.path)
	if err != nil {
		return 0, err
	}
	r.stood = max(r.stood, have)
	if room, known := diskRoom(filepath.Dir(r.path)); known {
		return max(have, min(r.wanted, (room+have)/8)), nil
	}
	return r.wanted, nil
}

// grow adds to the file until it has so many bytes.
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
	r.stood = max(r.stood, to)
	return nil
}

// release gives the room to whoever needs it.
func (r *reserve) release() error {
	if err := os.Remove(r.path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// restore makes the reserve as large as it stood, or as much smaller as leaves the same again for the write-ahead log.
// Errors: errDiskFull if even the least does not fit.
func (r *reserve) restore() error {
	have, err := fileSize(r.path)
	if err != nil {
		return err
	}
	least := min(minReserve, r.wanted)
	for size := max(r.stood, least); size >= least; size /= 2 {
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
