package console

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"
)

// Path is the path that the pages are below.
const Path = "/console/"

//go:embed static
var static embed.FS

// Config holds the dependencies of a Console.
type Config struct {
	// Server answers all requests to the server, through its filters. It serves Gate below Path.
	Server http.Handler
	// HasName reports whether a host name is one of the server's.
	HasName func(host string) bool
	// Now is the clock.
	Now func() time.Time
	// Timeout is how long a page may take, and then again its client to read it.
	Timeout time.Duration
}

// Console is a handler that serves the pages, and passes other requests to the server.
type Console struct {
	config Config
	mux    *http.ServeMux
	// pages has an element for each page that is made.
	pages chan struct{}
}

// pagesAtOnce is how many pages are made at a time: a page holds whole answers in memory.
const pagesAtOnce = 8

// New makes a Console.
func New(config Config) (*Console, error) {
	files, err := fs.Sub(static, "static")
	if err != nil {
		return nil, err
	}
	c := &Console{config: config, mux: http.NewServeMux(), pages: make(chan struct{}, pagesAtOnce)}
	for pattern, show := range map[string]func(*visit) error{
		"{$}":                            (*visit).showResources,
		"r/{group}/{version}/{resource}": (*visit).showTable,
		"o/{group}/{version}/{resource}/{namespace}/{name}": (*visit).showObject,
		"change/{namespace}/{revision}":                     (*visit).showChange,
		"deleted":                                           (*visit).showDeleted,
		"sql":                                               (*visit).showSQL,
		"health":                                            (*visit).showHealth,
		"":                                                  (*visit).showNothing,
	} {
		c.mux.HandleFunc(Path+pattern, func(w http.ResponseWriter, r *http.Request) { newVisit(c, w, r).answer(show) })
	}
	c.mux.Handle(Path+"static/", http.StripPrefix(Path+"static/", http.FileServerFS(files)))
	return c, nil
}

// Gate answers with the name of the user. The server's filters stand before it: whoever gets the answer
// may see the console.
func Gate(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if user, ok := request.UserFrom(r.Context()); ok {
		_, _ = io.WriteString(w, user.GetName()) // fails only if the client has gone
	}
}

// policy lets a page load the console's own files, and nothing else.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// userKey is the key of the user's name in a request's context.
type userKey struct{}

// ServeHTTP implements http.Handler.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != strings.TrimSuffix(Path, "/") && !strings.HasPrefix(r.URL.Path, Path) {
		c.config.Server.ServeHTTP(w, r)
		return
	}
	defer logPanic(r)
	for name, value := range map[string]string{
		"Content-Security-Policy":      policy,
		"X-Content-Type-Options":       "nosniff",
		"Referrer-Policy":              "no-referrer",
		"Cache-Control":                "no-store",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Cross-Origin-Opener-Policy":   "same-origin",
	} {
		w.Header().Set(name, value)
	}
	v := newVisit(c, w, r)
	switch {
	case !c.answersTo(r.Host):
		v.showError(&apierrors.StatusError{ErrStatus: failure(http.StatusMisdirectedRequest,
			"the Host of this request is no name of this server: use one that its certificate has, an IP address, or \"byre console\"; --external-hostname adds a name")})
		return
	case r.Method != http.MethodGet:
		w.Header().Set("Allow", http.MethodGet)
		v.showError(&apierrors.StatusError{ErrStatus: failure(http.StatusMethodNotAllowed, "the console answers GET only")})
		return
	case !strings.HasPrefix(r.URL.Path, Path):
		// http.Redirect would make an absolute path of it, without the prefix of a proxy.
		w.Header().Set("Location", strings.TrimPrefix(Path, "/"))
		w.WriteHeader(http.StatusMovedPermanently)
		return
	}
	if strings.Count(r.URL.Path, "/") != strings.Count(r.URL.EscapedPath(), "/") ||
		strings.Contains(v.param("namespace"), "/") {
		v.showError(v.showNothing()) // no name has a slash
		return
	}
	user, err := v.client.pass(w.Header())
	if err != nil {
		v.showError(err)
		return
	}
	c.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
}

// logPanic logs a panic, which ends the request: net/http logs what any client can cause, and is not heard.
func logPanic(r *http.Request) {
	reason := recover()
	if reason == nil {
		return
	}
	if reason != http.ErrAbortHandler { //nolint:errorlint // a panic's value, as net/http compares it
		klog.ErrorS(nil, "Panic in the console", "path", r.URL.Path, "reason", reason, "stack", string(debug.Stack()))
	}
	panic(reason)
}

// answersTo reports whether the console answers requests for a host, with or without a port. A page of
// another site can let its own name resolve to this server (DNS rebinding); the Host header has that name
// then. It can't have an address.
func (c *Console) answersTo(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	return strings.EqualFold(host, "localhost") || net.ParseIP(host) != nil || host != "" && c.config.HasName(host)
}

// visit is one request for a page.
type visit struct {
	pageURL
	console *Console
	client  *client
	w       http.ResponseWriter
	r       *http.Request
	// made says that what follows only waits for the client: another page may be made.
	made func()
}

func newVisit(c *Console, w http.ResponseWriter, r *http.Request) *visit {
	return &visit{pageURL{r.URL}, c, &client{server: c.config.Server, from: r}, w, r, func() {}}
}

// answer answers with a page, which takes no longer than a request, or says that there are too many.
func (v *visit) answer(show func(*visit) error) {
	select {
	case v.console.pages <- struct{}{}:
		v.made = sync.OnceFunc(func() { <-v.console.pages })
		defer v.made()
	default:
		v.w.Header().Set("Retry-After", "1")
		v.showError(apierrors.NewTooManyRequestsError("the server makes too many pages at once: load this one again"))
		return
	}
	ctx, cancel := context.WithTimeout(v.r.Context(), v.console.config.Timeout)
	defer cancel()
	v.client.from = v.r.WithContext(ctx)
	v.limitWrites()
	// the connection may serve other requests
	defer func() { _ = http.NewResponseController(v.w).SetWriteDeadline(time.Time{}) }()
	if err := show(v); err != nil {
		v.showError(err)
	}
}

// limitWrites sets the time by which the client has read the next part of the answer, which may take Timeout to make.
func (v *visit) limitWrites() {
	// Not every connection has deadlines.
	_ = http.NewResponseController(v.w).SetWriteDeadline(v.console.config.Now().Add(2 * v.console.config.Timeout))
}

// forward answers with the server's answer, as it is. It may be any aggregated server's: a browser runs nothing of it.
func (v *visit) forward(q question) {
	v.made()
	v.w.Header().Set("Content-Security-Policy", "default-src 'none'; sandbox")
	v.client.server.ServeHTTP(v.w, v.client.request(q))
}

func (*visit) showNothing() error {
	return &apierrors.StatusError{ErrStatus: failure(http.StatusNotFound, "there is no such page")}
}

// showError shows why there is no page.
func (v *visit) showError(err error) {
	status := failure(http.StatusInternalServerError, "the page can't be made; the server's log says why")
	var known apierrors.APIStatus
	if errors.As(err, &known) {
		status = known.Status()
	} else {
		klog.ErrorS(err, "A page of the console failed", "path", v.r.URL.Path)
	}
	code := int(status.Code)
	if code < http.StatusBadRequest {
		code = http.StatusInternalServerError
	}
	v.render(code, "Error",
		problem(strconv.Itoa(code)+" "+http.StatusText(code)+": "+status.Message),
		g.If(code == http.StatusUnauthorized || code == http.StatusForbidden, h.P(
			g.Text("The console has the rights of the user who asks, and no login of its own. "), h.Code(g.Text("byre console")),
			g.Text(" or "), h.Code(g.Text("kubectl proxy")),
			g.Text(" opens it with the credentials of a kubeconfig. Users other than administrators need the ClusterRole "),
			h.Code(g.Text("byre:console-user")),
			g.Text(", and what they see is what they may list and get."))))
}

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
			klog.ErrorS(nil, "Panic in a request of the console", "path", r.URL.Path, "reason", reason, "stack",
				string(debug.Stack()))
			err = fmt.Errorf("panic: %v", reason)
		}
	}()
	c.server.ServeHTTP(w, r)
	if w.tooLarge {
		return nil,
			&apierrors.StatusError{ErrStatus: failure(http.StatusRequestEntityTooLarge,
				"the answer is too large for a page: select less, or use kubectl")}
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
