// Package state keeps in a folder what oncewatch cannot read again: what a
// store's ledger and its comparison with the broker know. With it a start is a
// comparison and not a first look; nothing needs it.
//
//	dir.go    the folder: one process at a time, files replaced whole
//	code.go   how numbers and names are written
//	store.go  what is kept of a store
//
// A file that is damaged, cut short, of a later version or of another table is
// set aside under another name, never believed.
package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
)

// version of the files' format. A file of a later one is not read.
const version = 1

const magic = "oncewatch state\n"

// headerBytes are magic, version, length of the body and its checksum.
const headerBytes = len(magic) + 4 + 8 + 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Dir is a folder that this process has to itself.
type Dir struct {
	path string
	lock *os.File
}

// ErrInUse says that another process has the folder.
var ErrInUse = errors.New("another process keeps its state there")

// Open takes the folder, and makes it where there is none. The error wraps
// ErrInUse where another process has it.
func Open(path string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("state.path: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state.path: %w", err)
	}
	if err := take(lock); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("state.path: %s: %w", path, err)
	}
	return &Dir{path: path, lock: lock}, nil
}

// Close gives the folder free.
func (d *Dir) Close() error { return d.lock.Close() }

func (d *Dir) file(name string) string { return filepath.Join(d.path, name+".state") }

// Read returns the body of a file; nil where there is none. Its error says what
// is wrong with the file.
func (d *Dir) Read(name string) ([]byte, error) {
	all, err := os.ReadFile(d.file(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return unwrap(all)
}

func unwrap(all []byte) ([]byte, error) {
	if len(all) < headerBytes || string(all[:len(magic)]) != magic {
		return nil, errors.New("it is no state of oncewatch, or was cut short")
	}
	head, body := all[len(magic):headerBytes], all[headerBytes:]
	if v := binary.LittleEndian.Uint32(head); v != version {
		return nil, fmt.Errorf("it has version %d, and this oncewatch reads version %d", v, version)
	}
	if n := binary.LittleEndian.Uint64(head[4:]); n != uint64(len(body)) {
		return nil, fmt.Errorf("it was cut short: %d bytes of %d", len(body), n)
	}
	if sum := crc32.Update(crc32.Checksum(all[:headerBytes-4], castagnoli), castagnoli, body); sum != binary.LittleEndian.Uint32(head[12:]) {
		return nil, errors.New("its checksum is wrong")
	}
	return body, nil
}

func wrap(body []byte) (head []byte) {
	head = append(head, magic...)
	head = binary.LittleEndian.AppendUint32(head, version)
	head = binary.LittleEndian.AppendUint64(head, uint64(len(body)))
	return binary.LittleEndian.AppendUint32(head, crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, body))
}

// Write replaces a file, whole or not at all.
func (d *Dir) Write(name string, body []byte) (err error) {
	temporary := d.file(name) + ".new"
	f, err := os.OpenFile(temporary, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close() // perhaps closed already
			_ = os.Remove(temporary)
		}
	}()
	if _, err := f.Write(wrap(body)); err != nil {
		return err
	}
	if _, err := f.Write(body); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(temporary, d.file(name)); err != nil {
		return err
	}
	return syncDir(d.path)
}

// SetAside gives a file that is of no use another name, and returns it. It takes
// the place of one that was set aside before.
func (d *Dir) SetAside(name string) (string, error) {
	aside := d.file(name) + ".set-aside"
	err := os.Rename(d.file(name), aside)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return aside, err
}

// syncDir makes a rename last. Not every file system can.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return nil
}
