package cuda

import (
	"errors"
	"time"
	"unsafe"

	"cotenant/internal/cuda/query"
)

// notReady is what a query returns while work is outstanding.
const notReady query.Code = 600

// CreateStream makes a non-blocking stream in the current context. A lower priority is more urgent.
func (d *Driver) CreateStream(priority int) (Stream, error) {
	var s Stream
	err := d.call("cuStreamCreateWithPriority", uintptr(unsafe.Pointer(&s)), streamNonBlocking, uintptr(int32(priority)))
	return s, err
}

// DestroyStream destroys a stream; the driver first finishes what is in it, without the caller waiting.
func (d *Driver) DestroyStream(s Stream) error { return d.call("cuStreamDestroy_v2", uintptr(s)) }

// SynchronizeStream waits for everything in a stream, for ever.
func (d *Driver) SynchronizeStream(s Stream) error {
	return d.call("cuStreamSynchronize", uintptr(s))
}

// StreamDone reports whether everything in a stream has ended.
func (d *Driver) StreamDone(s Stream) (bool, error) { return d.done("cuStreamQuery", uintptr(s)) }

func (d *Driver) done(symbol string, handle uintptr) (bool, error) {
	f := d.fn[symbol]
	if !f.Present() {
		return false, &MissingError{symbol}
	}
	switch code := query.Code(f.Call(handle)); code {
	case query.Success:
		return true, nil
	case notReady:
		return false, nil
	default:
		return false, &Error{symbol, code}
	}
}

// ErrDeadline is work that did not end by its deadline.
var ErrDeadline = errors.New("work on the GPU did not end by its deadline")

// WaitStream waits for everything in a stream until a deadline, by asking again and again. It returns ErrDeadline where that
// passes: the work goes on, and only the end of the process can end it.
func (d *Driver) WaitStream(s Stream, deadline time.Time) error {
	for pause := time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		done, err := d.StreamDone(s)
		if err != nil || done {
			return err
		}
		if time.Now().After(deadline) {
			return ErrDeadline
		}
		time.Sleep(pause)
	}
}

// StreamPriority returns a stream's priority, as the driver clamped it.
func (d *Driver) StreamPriority(s Stream) (int, error) {
	var p int32
	err := d.call("cuStreamGetPriority", uintptr(s), uintptr(unsafe.Pointer(&p)))
	return int(p), err
}

// GreenOfStream returns the Green Context that a stream belongs to; 0 for none.
func (d *Driver) GreenOfStream(s Stream) (GreenContext, error) {
	var g GreenContext
	err := d.call("cuStreamGetGreenCtx", uintptr(s), uintptr(unsafe.Pointer(&g)))
	return g, err
}

// StreamResource returns the SM resource of a stream. It needs CUDA 13.1.
func (d *Driver) StreamResource(s Stream) (Resource, error) {
	var r Resource
	err := d.call("cuStreamGetDevResource", uintptr(s), uintptr(unsafe.Pointer(&r)), TypeSM)
	return r, checkType(err, &r, TypeSM, "cuStreamGetDevResource")
}

// StreamWaitEvent makes what is submitted to a stream from here on wait for an event.
func (d *Driver) StreamWaitEvent(s Stream, e Event) error {
	return d.call("cuStreamWaitEvent", uintptr(s), uintptr(e), 0)
}

// EventFlags of CreateEvent. An event without timing is cheaper.
type EventFlags uint32

// The flags.
const (
	EventBlockingSync  EventFlags = 1
	EventDisableTiming EventFlags = 2
)

// CreateEvent makes an event in the current context.
func (d *Driver) CreateEvent(flags EventFlags) (Event, error) {
	var e Event
	err := d.call("cuEventCreate", uintptr(unsafe.Pointer(&e)), uintptr(flags))
	return e, err
}

// DestroyEvent destroys an event.
func (d *Driver) DestroyEvent(e Event) error { return d.call("cuEventDestroy_v2", uintptr(e)) }

// RecordEvent records what was submitted to a stream so far.
func (d *Driver) RecordEvent(e Event, s Stream) error {
	return d.call("cuEventRecord", uintptr(e), uintptr(s))
}

// EventDone reports whether what an event recorded has ended.
func (d *Driver) EventDone(e Event) (bool, error) { return d.done("cuEventQuery", uintptr(e)) }

// SynchronizeEvent waits for an event, for ever.
func (d *Driver) SynchronizeEvent(e Event) error {
	return d.call("cuEventSynchronize", uintptr(e))
}

// ElapsedMS returns the time between two events that have ended, in milliseconds.
func (d *Driver) ElapsedMS(from, to Event) (float32, error) {
	var ms float32
	symbol := "cuEventElapsedTime"
	err := d.call(symbol, uintptr(unsafe.Pointer(&ms)), uintptr(from), uintptr(to))
	return ms, err
}
