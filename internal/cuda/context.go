package cuda

import "unsafe"

// RetainPrimary retains the device's primary context and creates it where it doesn't exist. Each call needs a ReleasePrimary.
func (d *Driver) RetainPrimary(dev Device) (Context, error) {
	var c Context
	err := d.call("cuDevicePrimaryCtxRetain", uintptr(unsafe.Pointer(&c)), uintptr(dev))
	return c, err
}

// ReleasePrimary undoes one RetainPrimary. The last one destroys the primary context with all that is in it.
func (d *Driver) ReleasePrimary(dev Device) error {
	return d.call("cuDevicePrimaryCtxRelease_v2", uintptr(dev))
}

// PrimaryActive reports whether the device's primary context exists in this process.
func (d *Driver) PrimaryActive(dev Device) (bool, error) {
	var flags uint32
	var active int32
	err := d.call("cuDevicePrimaryCtxGetState", uintptr(dev), uintptr(unsafe.Pointer(&flags)), uintptr(unsafe.Pointer(&active)))
	return active != 0, err
}

// SetCurrent makes a context current on this thread; 0 makes none current.
func (d *Driver) SetCurrent(c Context) error { return d.call("cuCtxSetCurrent", uintptr(c)) }

// Synchronize waits for everything in the current context.
func (d *Driver) Synchronize() error { return d.call("cuCtxSynchronize") }

// PriorityRange returns the stream priorities of the current context: the least urgent and the most urgent, which is the lower
// number.
func (d *Driver) PriorityRange() (least, greatest int, err error) {
	var l, g int32
	err = d.call("cuCtxGetStreamPriorityRange", uintptr(unsafe.Pointer(&l)), uintptr(unsafe.Pointer(&g)))
	return int(l), int(g), err
}

// ContextResource returns the SM resource of a context, which may be one converted from a Green Context.
func (d *Driver) ContextResource(c Context) (Resource, error) {
	var r Resource
	err := d.call("cuCtxGetDevResource", uintptr(c), uintptr(unsafe.Pointer(&r)), TypeSM)
	return r, checkType(err, &r, TypeSM, "cuCtxGetDevResource")
}
