package handlers

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/server/httplog"
	"k8s.io/apiserver/pkg/server/routine"
	compbasemetrics "k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"byre/apiserver/storage"
)

// canStream reports whether a watch can be served as a stream of JSON documents
// over plain HTTP.
func canStream(w http.ResponseWriter, req *http.Request) bool {
	_, flushes := w.(http.Flusher)
	return flushes && !wsstream.IsWebSocketRequest(req)
}

// serveWatch starts a watch and serves it. Where the filters have prepared the request
// for it (routine.WithRoutine), the watch is served after this handler has returned.
func (e *encoded) serveWatch(
	ctx context.Context, w http.ResponseWriter, req *http.Request, options *internalversion.ListOptions, f format,
) {
	timeout := e.watchTimeout(options)
	klog.FromContext(ctx).V(3).Info("Starting watch", "path", req.URL.Path, "resourceVersion", options.ResourceVersion,
		"labels", options.LabelSelector, "fields", options.FieldSelector, "timeout", timeout, "audit-ID",
		audit.GetAuditIDTruncated(ctx))

	ctx, cancel := context.WithTimeout(ctx, timeout)
	key, selection := e.selection(ctx, options)
	selection.SendInitialEvents = options.SendInitialEvents
	selection.Predicate.AllowWatchBookmarks = options.AllowWatchBookmarks
	events, err := e.store.WatchEncoded(ctx, key, selection, f.objects())
	if err != nil {
		cancel()
		e.fail(w, req, err)
		return
	}
	stream := e.newStream(ctx, w, options, f)
	stream.isCompressed = isWatchList(options) &&
		responsewriters.ContentEncodingSupported(req, features.WatchListCompression) == "gzip"
	serve := func() {
		defer cancel()
		defer events.Close()
		info, _ := request.RequestInfoFrom(ctx)
		metrics.RecordLongRunning(req, info, metrics.APIServerComponent, func() { stream.run(ctx, cancel, events) })
	}
	if task := routine.TaskFrom(req.Context()); task != nil {
		task.Func = serve
		return
	}
	serve()
}

// isWatchList reports whether the watch begins with the objects that there are.
func isWatchList(options *internalversion.ListOptions) bool {
	return options.SendInitialEvents != nil && *options.SendInitialEvents && options.AllowWatchBookmarks
}

// watchTimeout is how long a watch stays open. If the client does not say, it is a
// random time between one and two times MinRequestTimeout, so that clients that have
// come at once do not all come back at once.
func (e *encoded) watchTimeout(options *internalversion.ListOptions) time.Duration {
	if options.TimeoutSeconds != nil && *options.TimeoutSeconds != 0 {
		return time.Duration(*options.TimeoutSeconds) * time.Second
	}
	return time.Duration(float64(e.resource.serving.MinRequestTimeout) * (rand.Float64() + 1))
}

// stream is the response of one watch.
type stream struct {
	w http.ResponseWriter
	// isCompressed makes each batch a member of a gzip stream (RFC 1952, section 2.2), as
	// upstream's perFlushGzipWriter does: a watch without events holds no compressor.
	isCompressed bool
	// gzip is the compressor of the batch that is sent; nil between batches.
	gzip     *compressor
	encoded  *encoded
	format   format
	count    compbasemetrics.CounterMetric
	size     compbasemetrics.ObserverMetric
	buf      []byte
	initial  bool // the end of the initial events has not been sent, and its latency is recorded
	scope    string
	received time.Time
}

func (e *encoded) newStream(
	ctx context.Context, w http.ResponseWriter, options *internalversion.ListOptions, f format,
) *stream {
	gvr := e.resource.scope.Resource
	received, _ := request.ReceivedTimestampFrom(ctx)
	return &stream{
		w:        w,
		encoded:  e,
		format:   f,
		count:    metrics.WatchEvents.WithContext(ctx).WithLabelValues(gvr.Group, gvr.Version, gvr.Resource),
		size:     metrics.WatchEventsSizes.WithContext(ctx).WithLabelValues(gvr.Group, gvr.Version, gvr.Resource),
		initial:  isWatchList(options) && !received.IsZero(),
		scope:    metrics.CleanListScope(ctx, options),
		received: received,
	}
}

// run sends events until ctx ends, the server shuts down, the client is gone, or the
// watch ends with an error, which run sends as the last event.
func (s *stream) run(ctx context.Context, cancel context.CancelFunc, events storage.EncodedWatch) {
	s.w.Header().Set("Content-Type", s.format.streamType())
	s.w.Header().Set("Transfer-Encoding", "chunked")
	if s.isCompressed {
		s.w.Header().Set("Content-Encoding", "gzip")
		s.w.Header().Add("Vary", "Accept-Encoding")
	}
	s.w.WriteHeader(http.StatusOK)
	flusher := s.w.(http.Flusher)
	flusher.Flush()
	defer endOnShutdown(ctx, cancel)()

	for {
		batch, err := events.Next(ctx)
		if ctx.Err() != nil || errors.Is(err, io.EOF) {
			return
		}
		if !s.sendBatch(ctx, batch, err) || err != nil {
			return
		}
		flusher.Flush()
	}
}

// sendBatch sends events, and then the error that ends the watch, if err is not nil. It
// returns false if the client is gone. The stream has a buffer only during the call,
// because there are many watches, and most of them have nothing to send most of the
// time.
func (s *stream) sendBatch(ctx context.Context, batch []storage.EncodedEvent, err error) bool {
	s.buf = getBuffer()
	defer func() {
		buf := s.buf
		s.buf = nil
		putBuffer(buf)
		if s.gzip != nil {
			putCompressor(s.gzip)
			s.gzip = nil
		}
	}()
	for _, event := range batch {
		s.appendEvent(ctx, event)
		if len(s.buf) >= writeSize && !s.send() {
			return false
		}
	}
	if err != nil {
		s.appendError(err)
	}
	return s.send() && s.endMember()
}

// endOnShutdown cancels a watch when the server begins to shut down. The caller calls
// the returned function when the watch has ended; it joins the goroutine that waits for
// the shutdown.
func endOnShutdown(ctx context.Context, cancel context.CancelFunc) func() {
	signals := request.ServerShutdownSignalFrom(ctx)
	if signals == nil {
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-signals.ShuttingDown():
			cancel()
		case <-ctx.Done():
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func (s *stream) send() bool {
	if len(s.buf) == 0 {
		return true
	}
	out := io.Writer(s.w)
	if s.isCompressed {
		if s.gzip == nil {
			s.gzip = getCompressor(s.w)
		}
		out = s.gzip
	}
	_, err := out.Write(s.buf)
	s.buf = s.buf[:0]
	return err == nil
}

// endMember ends the member of the gzip stream that the batch has begun. The flush before the
// end matters: a reader that finds the end of a member together with its last bytes waits for
// the next member before it returns them (compress/gzip).
func (s *stream) endMember() bool {
	return s.gzip == nil || s.gzip.Flush() == nil && s.gzip.finish() == nil
}

func (s *stream) appendEvent(ctx context.Context, event storage.EncodedEvent) {
	start := len(s.buf)
	var size int
	s.buf, size = s.format.appendEvent(s.buf, string(event.Type), event.Object)
	s.count.Inc()
	s.size.Observe(float64(size))
	if s.initial && event.Type == apiwatch.Bookmark {
		s.initialEventsSent(ctx, s.buf[start:])
	}
}

// initialEventsSent records how long the initial events took, if the bookmark marks
// their end.
func (s *stream) initialEventsSent(ctx context.Context, bookmark []byte) {
	if !bytes.Contains(bookmark, []byte(metav1.InitialEventsAnnotationKey)) {
		return
	}
	s.initial = false
	latency := time.Since(s.received)
	metrics.RecordWatchListLatency(ctx, s.encoded.resource.scope.Resource, s.scope, latency)
	httplog.AddKeyValue(ctx, "watchlist_init_latency", latency)
}

// appendError appends the ERROR event of the error that ends a watch.
func (s *stream) appendError(err error) {
	s.buf = s.format.appendError(s.buf, responsewriters.ErrorToAPIStatus(err))
	s.count.Inc()
}
