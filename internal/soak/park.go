package soak

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
)

// parking keeps what contexts with another turn have said so far on the disk, so that memory holds a parkedRef of each and no more.
// The file only grows: a header, then records of context (8 bytes), turn (4), length (4), all little-endian, and as many bytes. A record
// is handed to the system before its turn's row is, so that a killed process never leaves a row without it.
type parking struct {
	commit *ledger.Committer
	f      *os.File
	refs   []parkedRef

	mu  sync.Mutex
	end int64
	buf []byte
}

// parkedRef is all that memory holds of a parked conversation.
type parkedRef struct {
	offset int64    // of its record; 0: none
	ready  int64    // µs: when the turn after it could run; 0 in another segment than the one that parked it
	digest [16]byte // the commitment to its bytes
}

const parkHead = 16 // bytes of a record before its payload

// createPark makes the file of a run that begins.
func createPark(dir string, contexts int64, commit *ledger.Committer) (*parking, error) {
	f, err := os.OpenFile(filepath.Join(dir, ledger.ParkFile), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("making the park file: %w", err)
	}
	if _, err := f.WriteString(ledger.ParkMagic); err != nil {
		return nil, errors.Join(fmt.Errorf("writing the park file: %w", err), f.Close())
	}
	return &parking{commit: commit, f: f, refs: make([]parkedRef, contexts), end: int64(len(ledger.ParkMagic))}, nil
}

// reopenPark reads an earlier process's file. Of each context it finds the record that the rows' last result of it names: want has
// its turn (-1: none) and commitment.
func reopenPark(dir string, commit *ledger.Committer, want []parkedRef, turn func(context int64) int64) (*parking, error) {
	f, err := os.OpenFile(filepath.Join(dir, ledger.ParkFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the park file: %w", err)
	}
	p := &parking{commit: commit, f: f, refs: want}
	// A process that was killed at its start may have left no file, or no whole head.
	if info, err := f.Stat(); err == nil && info.Size() < int64(len(ledger.ParkMagic)) {
		if _, err := f.WriteAt([]byte(ledger.ParkMagic), 0); err != nil {
			return nil, errors.Join(fmt.Errorf("writing the park file: %w", err), f.Close())
		}
	}
	if err := p.scan(turn); err != nil {
		return nil, errors.Join(fmt.Errorf("reading the park file: %w", err), f.Close())
	}
	return p, nil
}

// scan finds records and cuts off a torn one at the end.
func (p *parking) scan(turn func(context int64) int64) error {
	r := bufio.NewReaderSize(p.f, 1<<16)
	magic := make([]byte, len(ledger.ParkMagic))
	if _, err := io.ReadFull(r, magic); err != nil || string(magic) != ledger.ParkMagic {
		return fmt.Errorf("it doesn't begin with %q", ledger.ParkMagic)
	}
	p.end = int64(len(magic))
	for {
		var head [parkHead]byte
		if _, err := io.ReadFull(r, head[:]); err == io.EOF || err == io.ErrUnexpectedEOF {
			break
		} else if err != nil {
			return err
		}
		context, at, n := parkHeader(head)
		if n > ledger.MaxParked {
			return fmt.Errorf("a record at byte %d has %d bytes: the limit is %d", p.end, n, ledger.MaxParked)
		}
		if _, err := r.Discard(int(n)); err == io.EOF {
			break // torn
		} else if err != nil {
			return err
		}
		// A turn that was done twice, since a kill took its row, has two records: the one that opens the row's commitment counts.
		if context < int64(len(p.refs)) && at == turn(context) {
			if _, _, err := p.read(context, p.end, at); err == nil {
				p.refs[context].offset = p.end
			}
		}
		p.end += parkHead + n
	}
	for c := range p.refs {
		if turn(int64(c)) >= 0 && p.refs[c].offset == 0 {
			return fmt.Errorf("what context %d parked after turn %d isn't there", c, turn(int64(c)))
		}
	}
	return p.f.Truncate(p.end)
}

func parkHeader(b [parkHead]byte) (context, turn, n int64) {
	return int64(binary.LittleEndian.Uint64(b[:]) &^ (1 << 63)), int64(binary.LittleEndian.Uint32(b[8:])), int64(binary.LittleEndian.Uint32(b[12:]))
}

// park writes what was said up to and with a turn and returns its commitment.
func (p *parking) park(context, turn int64, said []loadgen.Message) (string, error) {
	payload, err := json.Marshal(said)
	if err != nil {
		return "", fmt.Errorf("encoding what is to be parked: %w", err)
	}
	if len(payload) > ledger.MaxParked {
		return "", fmt.Errorf("a conversation of %d bytes can't be parked: the limit is %d", len(payload), ledger.MaxParked)
	}
	commit := p.commit.Commit(ledger.LabelPark, payload)
	ref := parkedRef{}
	if _, err := hex.Decode(ref.digest[:], []byte(commit)); err != nil {
		return "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.buf = binary.LittleEndian.AppendUint64(p.buf[:0], uint64(context))
	p.buf = binary.LittleEndian.AppendUint32(p.buf, uint32(turn))
	p.buf = binary.LittleEndian.AppendUint32(p.buf, uint32(len(payload)))
	p.buf = append(p.buf, payload...)
	if _, err := p.f.WriteAt(p.buf, p.end); err != nil {
		return "", fmt.Errorf("parking context %d: %w", context, err)
	}
	ref.offset = p.end
	p.end += int64(len(p.buf))
	p.refs[context] = ref
	return commit, nil
}

// restore reads back what was said before a turn, and the commitment to the bytes that were read. It fails where they aren't those that
// were parked.
func (p *parking) restore(context, turn int64) ([]loadgen.Message, string, error) {
	p.mu.Lock()
	offset := p.refs[context].offset
	p.mu.Unlock()
	payload, commit, err := p.read(context, offset, turn-1)
	if err != nil {
		return nil, "", fmt.Errorf("restoring context %d: %w", context, err)
	}
	var said []loadgen.Message
	if err := json.Unmarshal(payload, &said); err != nil {
		return nil, "", fmt.Errorf("restoring context %d: %w", context, err)
	}
	return said, commit, nil
}

func (p *parking) read(context, offset, turn int64) (payload []byte, commit string, err error) {
	var head [parkHead]byte
	if _, err := p.f.ReadAt(head[:], offset); err != nil {
		return nil, "", err
	}
	c, t, n := parkHeader(head)
	if c != context || t != turn || n > ledger.MaxParked {
		return nil, "", fmt.Errorf("the record at byte %d is of context %d, turn %d, with %d bytes", offset, c, t, n)
	}
	payload = make([]byte, n)
	if _, err := p.f.ReadAt(payload, offset+parkHead); err != nil {
		return nil, "", err
	}
	commit = p.commit.Commit(ledger.LabelPark, payload)
	p.mu.Lock()
	want := hex.EncodeToString(p.refs[context].digest[:])
	p.mu.Unlock()
	if commit != want {
		return nil, "", fmt.Errorf("what was read is %s, what was parked %s", commit, want)
	}
	return payload, commit, nil
}

// setReady notes when a parked context's next turn could run.
func (p *parking) setReady(context, at int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refs[context].ready = at
}

func (p *parking) readyAt(context int64) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refs[context].ready
}

func (p *parking) close() error { return p.f.Close() }
