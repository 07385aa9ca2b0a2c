package verify

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"cotenant/internal/ledger"
)

// parkFile opens the commitments of the rows with the records of park.bin, where that file lies in the folder: each context's last
// parked turn is there byte for byte.
func parkFile(e *evidence) (string, string) {
	path := filepath.Join(e.folder.Dir, ledger.ParkFile)
	if info, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", "the park file isn't there: it is private, and published runs don't hold it"
	} else if err != nil || !info.Mode().IsRegular() {
		return "the park file can't be read", ""
	}
	file, err := os.Open(path)
	if err != nil {
		return err.Error(), ""
	}
	defer file.Close()
	commit, err := ledger.NewCommitter(e.config.Secret)
	if err != nil {
		return err.Error(), ""
	}
	missing := map[string]bool{}
	for c := range e.facts.control.everParked {
		missing[c] = true
	}
	wanted := len(missing)
	if err := parkRecords(file, func(payload []byte) { delete(missing, commit.Commit(ledger.LabelPark, payload)) }); err != nil {
		return "park.bin: " + err.Error(), ""
	}
	if len(missing) > 0 {
		return fmt.Sprintf("of %d parked conversations %d aren't in the park file as the rows commit to them", wanted, len(missing)), ""
	}
	return "", ""
}

// parkRecords hands each record's payload to f, valid until it returns. A torn last record is left out.
func parkRecords(r io.Reader, f func(payload []byte)) error {
	b := bufio.NewReaderSize(r, 1<<16)
	magic := make([]byte, len(ledger.ParkMagic))
	if _, err := io.ReadFull(b, magic); err != nil || string(magic) != ledger.ParkMagic {
		return fmt.Errorf("it doesn't begin with %q", ledger.ParkMagic)
	}
	var payload []byte
	for {
		var head [16]byte
		if _, err := io.ReadFull(b, head[:]); err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil
		} else if err != nil {
			return err
		}
		n := binary.LittleEndian.Uint32(head[12:])
		if n > ledger.MaxParked {
			return fmt.Errorf("a record has %d bytes: the limit is %d", n, ledger.MaxParked)
		}
		if uint32(cap(payload)) < n {
			payload = make([]byte, n)
		}
		payload = payload[:n]
		if _, err := io.ReadFull(b, payload); err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil
		} else if err != nil {
			return err
		}
		f(payload)
	}
}
