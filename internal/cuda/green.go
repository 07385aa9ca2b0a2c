package cuda

import "unsafe"

// Flags of Green Contexts and their streams. Drivers up to CUDA 13.2 demand the first; all streams must be non-blocking.
const (
	greenDefaultStream = 1 // CU_GREEN_CTX_DEFAULT_STREAM
	streamNonBlocking  = 1 // CU_STREAM_NON_BLOCKING
)

// CreateGreen makes a Green Context of a descriptor. It retains the primary context, is current on no thread, and keeps some
// device memory until the process ends, also after DestroyGreen: on driver 580 4 MiB each. Create once and reuse.
func (d *Driver) CreateGreen(dev Device, desc Descriptor) (GreenContext, error) {
	var g GreenContext
	err := d.call("cuGreenCtxCreate", uintptr(unsafe.Pointer(&g)), uintptr(desc), uintptr(dev), greenDefaultStream)
	return g, err
}

// DestroyGreen destroys a Green Context. Its streams aren't destroyed: destroy them first.
func (d *Driver) DestroyGreen(g GreenContext) error { return d.call("cuGreenCtxDestroy", uintptr(g)) }

// GreenResource returns the SM resource of a Green Context.
func (d *Driver) GreenResource(g GreenContext) (Resource, error) {
	var r Resource
	err := d.call("cuGreenCtxGetDevResource", uintptr(g), uintptr(unsafe.Pointer(&r)), TypeSM)
	return r, checkType(err, &r, TypeSM, "cuGreenCtxGetDevResource")
}

// GreenID returns the number of a Green Context, unique in the process's life. It needs CUDA 13.0.
func (d *Driver) GreenID(g GreenContext) (uint64, error) {
	var id uint64
	err := d.call("cuGreenCtxGetId", uintptr(g), uintptr(unsafe.Pointer(&id)))
	return id, err
}

// ContextOfGreen returns the context that stands for a Green Context. It lives as long as that and must not be destroyed. It may
// be current on one thread only.
func (d *Driver) ContextOfGreen(g GreenContext) (Context, error) {
	var c Context
	err := d.call("cuCtxFromGreenCtx", uintptr(unsafe.Pointer(&c)), uintptr(g))
	return c, err
}

// CreateGreenStream makes a non-blocking stream of a Green Context. It needs CUDA 12.5. A lower priority is more urgent.
func (d *Driver) CreateGreenStream(g GreenContext, priority int) (Stream, error) {
	var s Stream
	err := d.call("cuGreenCtxStreamCreate", uintptr(unsafe.Pointer(&s)), uintptr(g), streamNonBlocking, uintptr(int32(priority)))
	return s, err
}

// RecordGreenEvent records everything that was submitted to a Green Context so far.
func (d *Driver) RecordGreenEvent(g GreenContext, e Event) error {
	return d.call("cuGreenCtxRecordEvent", uintptr(g), uintptr(e))
}

// GreenWaitEvent makes what is submitted to a Green Context from here on wait for an event.
func (d *Driver) GreenWaitEvent(g GreenContext, e Event) error {
	return d.call("cuGreenCtxWaitEvent", uintptr(g), uintptr(e))
}
