package robustness

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"byre/e2e/robustness/history"
	"byre/e2e/robustness/traffic"
)

// restClient is a client of the ConfigMaps of one namespace. It never retries.
type restClient struct {
	client    rest.Interface
	namespace string
}

// The encodings.
const (
	jsonType     = "application/json"
	protobufType = "application/vnd.kubernetes.protobuf"
)

func newRESTClient(config *rest.Config, contentType, namespace string) (*restClient, error) {
	config = rest.CopyConfig(config)
	config.APIPath = "/api"
	config.GroupVersion = &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	config.ContentType, config.AcceptContentTypes = contentType, contentType
	client, err := rest.RESTClientFor(config)
	return &restClient{client, namespace}, err
}

func configMap(o history.Object) *corev1.ConfigMap {
	cm := traffic.ConfigMapOf(o)
	if o.Revision != 0 {
		cm.ResourceVersion = strconv.FormatInt(o.Revision, 10)
	}
	return cm
}

func (c *restClient) do(ctx context.Context, r *rest.Request) (history.Object, error) {
	var cm corev1.ConfigMap
	if err := c.on(r).Do(ctx).Into(&cm); err != nil {
		return history.Object{}, err
	}
	return traffic.ObjectOf(&cm)
}

func (c *restClient) on(r *rest.Request) *rest.Request {
	return r.Namespace(c.namespace).Resource("configmaps").MaxRetries(0)
}

// Create implements traffic.Client.
func (c *restClient) Create(ctx context.Context, o history.Object) (history.Object, error) {
	o.Revision = 0
	return c.do(ctx, c.client.Post().Body(configMap(o)))
}

// Update implements traffic.Client.
func (c *restClient) Update(ctx context.Context, o history.Object) (history.Object, error) {
	return c.do(ctx, c.client.Put().Name(o.Name).Body(configMap(o)))
}

// Patch implements traffic.Client.
func (c *restClient) Patch(ctx context.Context, o history.Object) (history.Object, error) {
	o.Revision = 0
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"labels": map[string]string{traffic.ColorKey: o.Color}},
		"data":     map[string]string{traffic.ValueKey: o.Value},
	})
	if err != nil {
		return history.Object{}, err
	}
	return c.do(ctx, c.client.Patch(types.MergePatchType).Name(o.Name).Body(patch))
}

// Delete implements traffic.Client.
func (c *restClient) Delete(ctx context.Context, name string, revision int64) error {
	options := &metav1.DeleteOptions{}
	if revision != 0 {
		version := strconv.FormatInt(revision, 10)
		options.Preconditions = &metav1.Preconditions{ResourceVersion: &version}
	}
	return c.on(c.client.Delete()).Name(name).Body(options).Do(ctx).Error()
}

// Get implements traffic.Client.
func (c *restClient) Get(ctx context.Context, name string, mode history.Mode, at int64) (history.Object, error) {
	options := &metav1.GetOptions{}
	switch mode {
	case history.Any:
		options.ResourceVersion = "0"
	case history.NotOlderThan:
		options.ResourceVersion = strconv.FormatInt(at, 10)
	}
	return c.do(ctx, c.client.Get().Name(name).VersionedParams(options, scheme.ParameterCodec))
}

// List implements traffic.Client.
func (c *restClient) List(ctx context.Context, l traffic.ListOptions) (traffic.Page, error) {
	options := &metav1.ListOptions{Limit: l.Limit, Continue: l.Continue, LabelSelector: selector(l.Color)}
	options.ResourceVersion, options.ResourceVersionMatch = traffic.VersionOf(l)
	var list corev1.ConfigMapList
	if err := c.on(c.client.Get()).VersionedParams(options, scheme.ParameterCodec).Do(ctx).Into(&list); err != nil {
		return traffic.Page{}, err
	}
	return traffic.PageOf(&list)
}

func selector(color string) string {
	if color == "" {
		return ""
	}
	return traffic.ColorKey + "=" + color
}

// Watch implements traffic.Client.
func (c *restClient) Watch(ctx context.Context, o traffic.WatchOptions) (traffic.Stream, error) {
	options := &metav1.ListOptions{
		Watch: true, AllowWatchBookmarks: true, LabelSelector: selector(o.Color),
		ResourceVersion: strconv.FormatInt(o.After, 10),
	}
	if o.Initial {
		sends := true
		options.ResourceVersion, options.SendInitialEvents = "", &sends
		options.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	w, err := c.on(c.client.Get()).VersionedParams(options, scheme.ParameterCodec).Watch(ctx)
	if err != nil {
		return nil, err
	}
	return traffic.NewStream(ctx, w), nil
}

// Classify implements traffic.Client. What was answered with 4xx had no effect. Neither had
// what was answered with 503 and Retry-After: byre had not begun it.
func (c *restClient) Classify(err error) (history.Outcome, string) {
	var status apierrors.APIStatus
	switch {
	case apierrors.HasStatusCause(err, "ClientWatchDecoding"):
		return history.Unknown, "connection broke" // client-go makes a status 500 of a stream that ends in an event
	case errors.As(err, &status):
		s := status.Status()
		_, retries := apierrors.SuggestsClientDelay(err)
		reason := string(s.Reason)
		if reason == "" {
			reason = "status " + strconv.Itoa(int(s.Code))
		}
		switch {
		case s.Reason == metav1.StatusReasonGone:
			reason = history.Expired
		case s.Code == http.StatusInternalServerError:
			reason = history.Internal
		}
		if retries {
			reason += " with Retry-After"
		}
		if s.Code/100 == 4 || retries {
			return history.Failed, reason
		}
		return history.Unknown, reason
	}
	var network *net.OpError
	switch {
	case errors.As(err, &network) && network.Op == "dial":
		return history.Failed, "no connection"
	case errors.Is(err, context.DeadlineExceeded):
		return history.Unknown, "no answer in time"
	default:
		return history.Unknown, "connection broke"
	}
}
