package openai

import "fmt"

// Error types of OpenAI's error objects.
const (
	TypeInvalidRequest = "invalid_request_error"
	TypeRateLimit      = "rate_limit_error"
	TypeServer         = "server_error"
)

// Error is an error in OpenAI's shape. Status is the HTTP status that goes with it and isn't part of the object.
type Error struct {
	Status  int
	Message string
	Type    string
	Param   string // field at fault; empty is rendered as null
	Code    string // empty is rendered as null
}

func (e *Error) Error() string { return e.Message }

// BadRequest is a 400 about the named field; param may be empty.
func BadRequest(param, format string, args ...any) *Error {
	return &Error{Status: 400, Type: TypeInvalidRequest, Param: param, Message: fmt.Sprintf(format, args...)}
}

// Append renders {"error":{…}} with all four members, since clients with strict schemas miss absent ones.
func (e *Error) Append(dst []byte) []byte {
	dst = append(dst, `{"error":{"message":`...)
	dst = appendString(dst, e.Message)
	dst = append(dst, `,"type":`...)
	dst = appendString(dst, e.Type)
	dst = append(dst, `,"param":`...)
	dst = appendOptional(dst, e.Param)
	dst = append(dst, `,"code":`...)
	dst = appendOptional(dst, e.Code)
	return append(dst, "}}"...)
}

// AppendEvent renders the error as the last event of a stream whose headers are out. No [DONE] may follow.
func (e *Error) AppendEvent(dst []byte) []byte {
	dst = append(dst, "data: "...)
	dst = e.Append(dst)
	return append(dst, "\n\n"...)
}
