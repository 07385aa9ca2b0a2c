package cuda

import "unsafe"

// Graph is a CUgraph, GraphExec a CUgraphExec: what was captured from a stream, and the form of it that can be launched.
type (
	Graph     uintptr
	GraphExec uintptr
)

const captureThreadLocal = 1 // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may call what they like

// BeginCapture makes what is submitted to a stream from here on part of a graph instead of running it. The default stream can't
// be captured.
func (d *Driver) BeginCapture(s Stream) error {
	return d.call("cuStreamBeginCapture_v2", uintptr(s), captureThreadLocal)
}

// EndCapture ends BeginCapture and returns the graph, which the caller destroys. After an error in between it fails, and the
// stream runs again what it is given.
func (d *Driver) EndCapture(s Stream) (Graph, error) {
	var g Graph
	err := d.call("cuStreamEndCapture", uintptr(s), uintptr(unsafe.Pointer(&g)))
	return g, err
}

// Instantiate makes a graph launchable. The graph may be destroyed afterwards.
func (d *Driver) Instantiate(g Graph) (GraphExec, error) {
	var e GraphExec
	err := d.call("cuGraphInstantiateWithFlags", uintptr(unsafe.Pointer(&e)), uintptr(g), 0)
	return e, err
}

// UpdateGraph gives a launchable graph the parameters of another one of the same shape. An error leaves it as it was.
func (d *Driver) UpdateGraph(e GraphExec, g Graph) error {
	var result [4]uint64 // CUgraphExecUpdateResultInfo: a code and two nodes
	return d.call("cuGraphExecUpdate_v2", uintptr(e), uintptr(g), uintptr(unsafe.Pointer(&result)))
}

// LaunchGraph puts a graph into a stream.
func (d *Driver) LaunchGraph(e GraphExec, s Stream) error {
	return d.call("cuGraphLaunch", uintptr(e), uintptr(s))
}

// DestroyGraph destroys a graph; DestroyGraphExec a launchable one, after its last launch has ended.
func (d *Driver) DestroyGraph(g Graph) error { return d.call("cuGraphDestroy", uintptr(g)) }

// DestroyGraphExec is described at DestroyGraph.
func (d *Driver) DestroyGraphExec(e GraphExec) error {
	return d.call("cuGraphExecDestroy", uintptr(e))
}
