package server

import (
	"context"
	"errors"
	"math"
	"strconv"
	"time"

	"cotenant/internal/openai"
)

// Reasons of cotenant_requests_failed_total: a closed list.
const (
	reasonBadRequest   = "bad_request"
	reasonUnauthorized = "unauthorized"
	reasonNotFound     = "not_found"
	reasonMethod       = "method_not_allowed"
	reasonMediaType    = "media_type"
	reasonTooLarge     = "body_too_large"
	reasonSlowClient   = "slow_client" // body came too slowly, or bytes weren't taken
	reasonCancelled    = "cancelled"   // the client went away
	reasonQueueFull    = "queue_full"
	reasonBusy         = "too_many_requests"
	reasonUnavailable  = "unavailable"
	reasonDraining     = "draining"
	reasonInternal     = "internal"
)

var reasons = []string{reasonBadRequest, reasonUnauthorized, reasonNotFound, reasonMethod, reasonMediaType, reasonTooLarge,
	reasonSlowClient, reasonCancelled, reasonQueueFull, reasonBusy, reasonUnavailable, reasonDraining, reasonInternal}

// failure is an error that is ready to be sent.
type failure struct {
	err        *openai.Error
	reason     string
	retryAfter time.Duration // 0: no Retry-After
}

func (f *failure) Error() string { return f.err.Message }

// Causes of a cancelled request.
var (
	errDraining   = errors.New("server is shutting down")
	errClientGone = errors.New("client has gone away")
	errSlowClient = errors.New("client takes no bytes")
)

var errInternal = &openai.Error{Status: 500, Type: openai.TypeServer, Code: "internal_error",
	Message: "internal error; the server's log has it under this request's X-Request-Id"}

// errCancelled is read by clients alone that closed their sending side and go on listening.
var errCancelled = &openai.Error{Status: 400, Type: openai.TypeInvalidRequest, Code: "cancelled",
	Message: "the client closed its side of the connection before the answer was there, which cancels the request"}

// failure maps an error to what the client is told. SDKs retry 408, 409, 429 and 500 up by themselves, so these are given only
// where a retry can help. What an internal error says stays in the log.
func (s *Server) failure(err error) *failure {
	var f *failure
	var bad *openai.Error
	var request *RequestError
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &bad):
		return &failure{err: bad, reason: reasonBadRequest}
	case errors.As(err, &request):
		return &failure{reason: reasonBadRequest, err: &openai.Error{Status: 400, Type: openai.TypeInvalidRequest,
			Message: request.Message, Param: request.Param, Code: request.Code}}
	case errors.Is(err, ErrQueueFull):
		return &failure{reason: reasonQueueFull, retryAfter: s.queueAge(), err: &openai.Error{Status: 429,
			Type: openai.TypeRateLimit, Code: "rate_limit_exceeded", Message: "the queue is full; try again later"}}
	case errors.Is(err, errDraining):
		return &failure{reason: reasonDraining, retryAfter: time.Second, err: &openai.Error{Status: 503,
			Type: openai.TypeServer, Code: "draining", Message: errDraining.Error()}}
	case errors.Is(err, ErrUnavailable):
		return &failure{reason: reasonUnavailable, retryAfter: time.Second, err: &openai.Error{Status: 503,
			Type: openai.TypeServer, Code: "unavailable", Message: "the model can't serve requests; /health says why"}}
	case errors.Is(err, errSlowClient):
		return &failure{reason: reasonSlowClient, err: &openai.Error{Status: 408, Type: openai.TypeInvalidRequest,
			Code: "timeout", Message: "the client is too slow"}}
	case errors.Is(err, errClientGone), errors.Is(err, context.Canceled):
		return &failure{reason: reasonCancelled, err: errCancelled}
	}
	return &failure{reason: reasonInternal, err: errInternal}
}

// queueAge is how long the head of the longest queue has waited: a fair guess at how long a place in it takes to come free.
func (s *Server) queueAge() time.Duration {
	age := time.Second
	for _, g := range s.models {
		age = max(age, g.Stats().QueueOldestAge)
	}
	return min(age, 30*time.Second)
}

// retryAfter renders whole seconds, rounded up (RFC 9110, section 10.2.3).
func retryAfter(d time.Duration) string { return strconv.Itoa(int(math.Ceil(d.Seconds()))) }
