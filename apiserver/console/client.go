package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// The media types that the console asks for.
const (
	asJSON     = "application/json"
	asTable    = "application/json;as=Table;v=v1;g=meta.k8s.io"
	asMetadata = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	asGroups   = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
)

// maxAnswer is how many bytes of an answer a page may need.
const maxAnswer = 64 << 20

// client asks the server with the credentials of one request. It is safe for concurrent use.
type client struct {
	server http.Handler
	from   *http.Request
}

// question is a request to the server.
type question struct {
	path   string
	query  url.Values
	accept string
	// body makes it a POST.
	body        []byte
	contentType string
}

// request makes the request of a question. It has all headers of the console's, because a flag decides
// which ones name the user of a front proxy, but for those that are about the console's own answer.
func (c *client) request(q question) *http.Request {
	r := c.from.Clone(c.from.Context())
	r.URL = &url.URL{Path: q.path, RawQuery: q.query.Encode()}
	r.RequestURI = r.URL.RequestURI()
	for name := range r.Header {
		if strings.HasPrefix(name, "If-") || strings.HasPrefix(name, "Content-") {
			r.Header.Del(name)
		}
	}
	for _, name := range []string{"Accept-Encoding", "Range", "Origin", "Connection", "Upgrade"} {
		r.Header.Del(name)
	}
	r.Header.Set("Accept", q.accept)
	r.Method, r.Body, r.ContentLength, r.TransferEncoding = http.MethodGet, http.NoBody, 0, nil
	if q.body != nil {
		r.Method, r.Body, r.ContentLength = http.MethodPost, io.NopCloser(bytes.NewReader(q.body)), int64(len(q.body))
		r.Header.Set("Content-Type", q.contentType)
	}
	return r
}

// ask returns the body of the answer. An answer that is a failure is an APIStatus.
func (c *client) ask(q question) ([]byte, error) {
	w, err := c.send(c.request(q))
	if err != nil {
		return nil, err
	}
	return w.body.Bytes(), w.failure()
}

// get decodes the answer into an object.
func (c *client) get(q question, into any) error {
	body, err := c.ask(q)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("decode the answer of %s: %w", q.path, err)
	}
	return nil
}

// pass asks the server whether the user may see the console at the path of the request, and returns the
// user's name. It copies those headers of the answer that are about the request for the page.
func (c *client) pass(to http.Header) (user string, err error) {
	r := c.request(question{accept: asJSON})
	r.URL, r.RequestURI = c.from.URL, c.from.RequestURI
	w, err := c.send(r)
	if err != nil {
		return "", err
	}
	for _, name := range []string{"Audit-Id", "Retry-After", "Strict-Transport-Security"} {
		if values := w.header.Values(name); len(values) > 0 {
			to[name] = values
		}
	}
	return w.body.String(), w.failure()
}

// send has the server answer a request. A panic of the handler is an error: the caller may have
// goroutines, in which it would end the process.
func (c *client) send(r *http.Request) (w *answer, err error) {
	w = &answer{header: http.Header{}}
	defer func() {
		switch reason := recover(); {
		case reason == nil:
		case reason == http.ErrAbortHandler: //nolint:errorlint // a panic's value, as net/http compares it
			err = apierrors.NewTimeoutError("the server has ended the request", 0)
		default:
			klog.ErrorS(nil, "Panic in a request of the console", "path", r.URL.Path, "reason", reason, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", reason)
		}
	}()
	c.server.ServeHTTP(w, r)
	if w.tooLarge {
		return nil, &apierrors.StatusError{ErrStatus: failure(http.StatusRequestEntityTooLarge, "the answer is too large for a page: select less, or use kubectl")}
	}
	return w, nil
}

// answer is a response that is kept in memory.
type answer struct {
	header   http.Header
	status   int
	body     bytes.Buffer
	tooLarge bool
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= http.StatusOK {
		a.status = status
	}
}

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.body.Len()+len(p) > maxAnswer {
		a.tooLarge = true
		return 0, errors.New("console: the answer is too large")
	}
	return a.body.Write(p)
}

// Flush implements http.Flusher.
func (*answer) Flush() {}

// CloseNotify implements http.CloseNotifier, because upstream's wrappers require it.
func (*answer) CloseNotify() <-chan bool { return nil }

// failure returns the answer as an error, if it is one.
func (a *answer) failure() error {
	if a.status < http.StatusMultipleChoices {
		return nil
	}
	var status metav1.Status
	if err := json.Unmarshal(a.body.Bytes(), &status); err != nil || status.Kind != "Status" || status.Message == "" {
		status = failure(a.status, strings.TrimSpace(a.body.String()))
	}
	return &apierrors.StatusError{ErrStatus: status}
}

func failure(code int, message string) metav1.Status {
	return metav1.Status{Status: metav1.StatusFailure, Code: int32(code), Message: message}
}

// message is what a user is told of an error that leaves out only a part of a page; nothing if there is none.
func message(err error) string {
	if err == nil {
		return ""
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Message
	}
	return err.Error()
}
