package cuda

import (
	"errors"
	"fmt"

	"cotenant/internal/backend"
	driver "cotenant/internal/cuda"
)

// maxRows bounds a batch: grids have a dimension of rows.
const maxRows = 1<<16 - 1

// step is the one that is being recorded.
type step struct {
	ops      []op
	in       []int32 // what goes to the device: the batch, then sampling parameters
	l        layout
	decode   bool // one row a sequence, all rows are outputs, in order: rows are padded
	gathered bool // Gather was recorded: what follows is on the rows that it chose
	single   int  // leading rows that are their sequences' only ones
	tokens   []int32
	slots    []int32
	at       []int32 // positions
	seqs     []backend.Seq
	pages    []int32 // block tables of seqs
	rows     int     // of the batch
	outs     int
	embedded int // rows of the table that tokens were checked against; 0: not yet
	stored   *kv
	attended *kv
	turned   *rope

	device  driver.Pointer // in, on the device
	words   int            // room there and in the page-locked buffers
	host    [2][]byte      // page-locked, used in turn
	sent    [2]driver.Event
	flying  [2]bool
	next    int
	staging staging
	loaded  bool // what was uploaded so far is there
}

// layout is where the parts of a step's input lie, in words. Each part begins at a multiple of 4.
type layout struct {
	rows, seqs, outs, stride                         int // padded; stride: pages of a block table
	tokens, positions, slots, rowSeq, outputs        int
	seqRow, seqRows, seqPast, tables                 int
	draws, penalties, offsets, entries, batch, total int
}

func newLayout(rows, seqs, outs, stride int) layout {
	l := layout{rows: rows, seqs: seqs, outs: outs, stride: stride}
	at := 0
	part := func(n int) int {
		from := at
		at += (n + 3) &^ 3
		return from
	}
	l.tokens, l.positions, l.slots, l.rowSeq = part(rows), part(rows), part(rows), part(rows)
	l.outputs = part(outs)
	l.seqRow, l.seqRows, l.seqPast, l.tables = part(seqs), part(seqs), part(seqs), part(seqs*stride)
	l.batch = at
	l.draws, l.penalties, l.offsets = part(8*outs), part(4*outs), part(outs+1)
	l.entries = at
	l.total = at
	return l
}

const firstWords = 1 << 18

func (s *step) open(g *gpu) error { return s.room(g, firstWords) }

// room makes room for a step's input; graphs that read the old one are dropped.
func (s *step) room(g *gpu, n int) error {
	if n <= s.words {
		return nil
	}
	if s.words != 0 {
		if err := g.d.SynchronizeStream(g.stream); err != nil {
			return err
		}
		if err := errors.Join(g.graphs.drop(g.d), g.mem.release("workspace", s.device, 4*int64(s.words)), s.freeHost(g.d)); err != nil {
			return err
		}
		n = max(n, 2*s.words)
	}
	s.words = 0
	p, err := g.mem.alloc("workspace", 4*int64(n))
	if err != nil {
		return err
	}
	s.device = p
	for i := range s.host {
		if s.host[i], err = g.d.AllocHost(4 * n); err != nil {
			return err
		}
		if s.sent[i] == 0 {
			if s.sent[i], err = g.d.CreateEvent(driver.EventDisableTiming); err != nil {
				return err
			}
		}
	}
	s.words = n
	return nil
}

func (s *step) freeHost(d *driver.Driver) error {
	var err error
	for i := range s.host {
		if s.host[i] != nil {
			err = errors.Join(err, d.FreeHost(s.host[i]))
		}
		s.host[i], s.flying[i] = nil, false
	}
	return err
}

func (s *step) close(d *driver.Driver) error {
	err := s.freeHost(d)
	for _, e := range s.sent {
		if e != 0 {
			err = errors.Join(err, d.DestroyEvent(e))
		}
	}
	for i := range s.staging.host {
		if s.staging.host[i] != nil {
			err = errors.Join(err, d.FreeHost(s.staging.host[i]), d.DestroyEvent(s.staging.taken[i]))
		}
	}
	return err
}

// Begin implements backend.Backend.
func (g *gpu) Begin(b *backend.Batch) error {
	if g.closed {
		return errors.New("cuda backend: begin after close")
	}
	s := &g.step
	if !s.loaded {
		if err := g.settle(); err != nil {
			return fmt.Errorf("cuda backend: what was loaded: %w", err)
		}
	}
	rows := len(b.Tokens)
	if rows < 1 || rows > maxRows || len(b.Positions) != rows || len(b.Slots) != rows {
		return fmt.Errorf("cuda backend: begin: %d tokens, %d positions, %d slots; 1 to %d of each are possible",
			rows, len(b.Positions), len(b.Slots), maxRows)
	}
	if err := checkRows(b); err != nil {
		return fmt.Errorf("cuda backend: begin: %w", err)
	}
	g.err = nil
	s.ops, s.rows, s.outs, s.embedded, s.stored, s.attended, s.turned = s.ops[:0], rows, len(b.Outputs), 0, nil, nil, nil
	s.copyBatch(b)
	s.gathered = false
	s.decode = len(b.Seqs) == rows && len(b.Outputs) == rows && inOrder(b.Outputs)
	padded, seqs, outs := rows, len(b.Seqs), len(b.Outputs)
	if s.decode {
		padded = bucket(rows, g.opt.Rows)
		seqs, outs = padded, padded
	}
	stride := 0
	for i := range s.seqs {
		stride = max(stride, len(s.seqs[i].Pages))
	}
	stride = strideOf(stride)
	s.l = newLayout(padded, seqs, outs, stride)
	s.single = 0
	for s.single < len(b.Seqs) && b.Seqs[s.single].Rows == 1 {
		s.single++
	}
	if s.decode {
		s.single = padded
	}
	s.pack(b)
	return nil
}

// inOrder reports whether outputs are rows 0, 1, 2, ….
func inOrder(outputs []int32) bool {
	for i, r := range outputs {
		if int(r) != i {
			return false
		}
	}
	return true
}

// checkRows checks that sequences cover the rows and outputs are among them.
func checkRows(b *backend.Batch) error {
	rows, next := len(b.Tokens), 0
	for i, q := range b.Seqs {
		if q.Row != next || q.Rows < 1 || q.Rows > rows-next || q.Past < 0 {
			return fmt.Errorf("sequence %d has %d rows from %d behind %d, of %d", i, q.Rows, q.Row, q.Past, rows)
		}
		next += q.Rows
	}
	if next != rows {
		return fmt.Errorf("the sequences cover %d of %d rows", next, rows)
	}
	for i, r := range b.Outputs {
		if r < 0 || int(r) >= rows {
			return fmt.Errorf("output %d is row %d of %d", i, r, rows)
		}
	}
	return nil
}

// copyBatch keeps what operations check.
func (s *step) copyBatch(b *backend.Batch) {
	s.tokens = append(s.tokens[:0], b.Tokens...)
	s.slots = append(s.slots[:0], b.Slots...)
	s.at = append(s.at[:0], b.Positions...)
	s.seqs, s.pages = append(s.seqs[:0], b.Seqs...), s.pages[:0]
	for i := range b.Seqs {
		s.pages = append(s.pages, b.Seqs[i].Pages...)
	}
	at := 0
	for i := range s.seqs {
		n := len(b.Seqs[i].Pages)
		s.seqs[i].Pages = s.pages[at : at+n : at+n]
		at += n
	}
}

// bucket rounds the rows of a decode step up.
func bucket(rows, most int) int {
	n := 1
	switch {
	case rows > 256:
		n = (rows + 31) &^ 31
	case rows > 64:
		n = (rows + 15) &^ 15
	case rows > 8:
		n = (rows + 7) &^ 7
	default:
		for n < rows {
			n *= 2
		}
	}
	return max(rows, min(n, most))
}

// strideOf rounds the pages of a block table up: graphs are made for each, and their attention has parts for all of a table.
func strideOf(pages int) int {
	if pages <= 128 {
		return max(16, (pages+15)&^15)
	}
	n := 256
	for n < pages {
		n *= 2
	}
	return n
}

// pack writes the batch to in. Padding rows are token 0 at position 0 of a sequence of page 0, stored nowhere.
func (s *step) pack(b *backend.Batch) {
	l := &s.l
	if cap(s.in) < l.total {
		s.in = make([]int32, 2*l.total)
	}
	s.in = s.in[:l.total]
	clear(s.in)
	copy(s.in[l.tokens:], b.Tokens)
	copy(s.in[l.positions:], b.Positions)
	copy(s.in[l.slots:], b.Slots)
	copy(s.in[l.outputs:], b.Outputs)
	for i := range s.seqs {
		q := &s.seqs[i]
		s.in[l.seqRow+i], s.in[l.seqRows+i], s.in[l.seqPast+i] = int32(q.Row), int32(q.Rows), int32(q.Past)
		copy(s.in[l.tables+i*l.stride:], q.Pages)
		for r := q.Row; r < q.Row+q.Rows; r++ {
			s.in[l.rowSeq+r] = int32(i)
		}
	}
	for i := s.rows; i < l.rows; i++ {
		s.in[l.slots+i], s.in[l.rowSeq+i], s.in[l.outputs+i] = -1, int32(i), int32(i)
		s.in[l.seqRow+i] = int32(i) // without rows: attention skips it
	}
}

// word returns where a part of the step's input lies on the device.
func (s *step) word(part int) uint64 { return uint64(s.device) + 4*uint64(part) }

// send copies the step's input to the device.
func (g *gpu) send() error {
	s := &g.step
	if err := s.room(g, len(s.in)); err != nil {
		return err
	}
	i := s.next
	s.next = 1 - i
	if s.flying[i] {
		if err := g.d.SynchronizeEvent(s.sent[i]); err != nil {
			return err
		}
	}
	copy(words(s.host[i]), s.in)
	if err := g.d.ToDeviceAsync(s.device, s.host[i][:4*len(s.in)], g.stream); err != nil {
		return err
	}
	s.flying[i] = true
	return g.d.RecordEvent(s.sent[i], g.stream)
}

// Read implements backend.Backend.
func (g *gpu) Read(dst []float32, src backend.Buffer) error {
	b := bufferOf(src, "Read")
	if len(dst) > b.n {
		misfit("Read", "%d elements of a buffer of %d", len(dst), b.n)
	}
	g.wide(b)
	g.keep(b)
	g.flush()
	if g.err != nil {
		return g.err
	}
	if err := g.read(dst, b); err != nil {
		g.fail(err)
	}
	return g.err
}

const readBytes = 4 << 20

func (g *gpu) read(dst []float32, b *buffer) error {
	var err error
	if g.host == nil {
		if g.host, err = g.d.AllocHost(readBytes); err != nil {
			return err
		}
	}
	width := 4
	if b.kind == bf16 {
		width = 2
	}
	for at := 0; at < len(dst); {
		n := min(len(dst)-at, readBytes/width)
		if err := g.d.ToHostAsync(g.host[:n*width], b.p+driver.Pointer(at*width), g.stream); err != nil {
			return err
		}
		if err := g.d.SynchronizeStream(g.stream); err != nil {
			return err
		}
		if b.kind == bf16 {
			widen(dst[at:at+n], g.host)
		} else {
			copy(dst[at:at+n], floats(g.host))
		}
		at += n
	}
	return nil
}

// End implements backend.Backend. It doesn't wait: an error of what still runs is the next step's.
func (g *gpu) End() error {
	g.flush()
	return g.err
}
