package inprocess

import (
	"context"
	"errors"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	apistorage "k8s.io/apiserver/pkg/storage"

	"byre/apiserver/storage"
	"byre/apiserver/storage/encoding"
	"byre/e2e/robustness/history"
	"byre/e2e/robustness/traffic"
)

// Client uses a Store as the registries do: its reads are decoded objects, or with
// Encoded the protobuf that clients are sent.
type Client struct {
	Replica   *Replica
	Namespace string
	Encoded   bool
}

func (c Client) configMap(o history.Object) *corev1.ConfigMap {
	cm := traffic.ConfigMapOf(o)
	cm.Namespace, cm.UID = c.Namespace, "uid"
	return cm
}

// key returns the key of an object, or for "" the prefix of the keys of all objects.
func (c Client) key(name string) string { return "/configmaps/" + c.Namespace + "/" + name }

func (c Client) decode(e encoding.Encoded) (*corev1.ConfigMap, error) {
	var cm corev1.ConfigMap
	return &cm, cm.Unmarshal(e.Body())
}

// Create implements traffic.Client.
func (c Client) Create(ctx context.Context, o history.Object) (history.Object, error) {
	var out corev1.ConfigMap
	if err := c.Replica.Store().objects.Create(ctx, c.key(o.Name), c.configMap(o), &out, 0); err != nil {
		return history.Object{}, err
	}
	return traffic.ObjectOf(&out)
}

// Update implements traffic.Client.
func (c Client) Update(ctx context.Context, o history.Object) (history.Object, error) {
	version := strconv.FormatInt(o.Revision, 10)
	return c.update(ctx, o, &apistorage.Preconditions{ResourceVersion: &version})
}

// Patch implements traffic.Client.
func (c Client) Patch(ctx context.Context, o history.Object) (history.Object, error) {
	return c.update(ctx, o, nil)
}

func (c Client) update(
	ctx context.Context, o history.Object, preconditions *apistorage.Preconditions,
) (history.Object, error) {
	var out corev1.ConfigMap
	write := apistorage.SimpleUpdate(func(existing runtime.Object) (runtime.Object, error) {
		cm := existing.(*corev1.ConfigMap).DeepCopy()
		next := c.configMap(o)
		cm.Labels, cm.Data = next.Labels, next.Data
		return cm, nil
	})
	if err := c.Replica.Store().objects.GuaranteedUpdate(ctx, c.key(o.Name), &out, false, preconditions, write,
		nil); err != nil {
		return history.Object{}, err
	}
	return traffic.ObjectOf(&out)
}

// Delete implements traffic.Client.
func (c Client) Delete(ctx context.Context, name string, revision int64) error {
	var preconditions *apistorage.Preconditions
	if revision != 0 {
		version := strconv.FormatInt(revision, 10)
		preconditions = &apistorage.Preconditions{ResourceVersion: &version}
	}
	var out corev1.ConfigMap
	return c.Replica.Store().objects.Delete(ctx, c.key(name), &out, preconditions, apistorage.ValidateAllObjectFunc, nil,
		apistorage.DeleteOptions{})
}

// Get implements traffic.Client.
func (c Client) Get(ctx context.Context, name string, mode history.Mode, at int64) (history.Object, error) {
	var options apistorage.GetOptions
	switch mode {
	case history.Any:
		options.ResourceVersion = "0"
	case history.NotOlderThan:
		options.ResourceVersion = strconv.FormatInt(at, 10)
	}
	store := c.Replica.Store()
	if c.Encoded {
		e, err := store.objects.GetEncoded(ctx, c.key(name), options, store.protobuf)
		if err != nil {
			return history.Object{}, err
		}
		cm, err := c.decode(e)
		if err != nil {
			return history.Object{}, err
		}
		return traffic.ObjectOf(cm)
	}
	var cm corev1.ConfigMap
	if err := store.objects.Get(ctx, c.key(name), options, &cm); err != nil {
		return history.Object{}, err
	}
	return traffic.ObjectOf(&cm)
}

// predicate selects a color.
func predicate(color string) apistorage.SelectionPredicate {
	p := apistorage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything(),
		GetAttrs: apistorage.DefaultNamespaceScopedAttr}
	if color != "" {
		p.Label = labels.SelectorFromSet(labels.Set{traffic.ColorKey: color})
	}
	return p
}

// List implements traffic.Client.
func (c Client) List(ctx context.Context, l traffic.ListOptions) (traffic.Page, error) {
	options := apistorage.ListOptions{Predicate: predicate(l.Color), Recursive: true}
	options.Predicate.Limit, options.Predicate.Continue = l.Limit, l.Continue
	options.ResourceVersion, options.ResourceVersionMatch = traffic.VersionOf(l)
	var list corev1.ConfigMapList
	store := c.Replica.Store()
	if c.Encoded {
		encoded, err := store.objects.ListEncoded(ctx, c.key(""), options, store.protobuf)
		if err != nil {
			return traffic.Page{}, err
		}
		list.ResourceVersion, list.Continue = encoded.ResourceVersion, encoded.Continue
		for e, err := range encoded.Items {
			if err != nil {
				return traffic.Page{}, err
			}
			cm, err := c.decode(e)
			if err != nil {
				return traffic.Page{}, err
			}
			list.Items = append(list.Items, *cm)
		}
	} else if err := store.objects.GetList(ctx, c.key(""), options, &list); err != nil {
		return traffic.Page{}, err
	}
	return traffic.PageOf(&list)
}

// Watch implements traffic.Client.
func (c Client) Watch(ctx context.Context, o traffic.WatchOptions) (traffic.Stream, error) {
	options := apistorage.ListOptions{Predicate: predicate(o.Color), Recursive: true,
		ResourceVersion: strconv.FormatInt(o.After, 10)}
	options.Predicate.AllowWatchBookmarks = true
	if o.Initial {
		sends := true
		options.ResourceVersion, options.SendInitialEvents = "", &sends
		options.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	store := c.Replica.Store()
	if c.Encoded {
		w, err := store.objects.WatchEncoded(ctx, c.key(""), options, store.protobuf)
		return &encodedStream{ctx: ctx, client: c, w: w}, err
	}
	w, err := store.objects.Watch(ctx, c.key(""), options)
	return traffic.NewStream(ctx, w), err
}

type encodedStream struct {
	ctx    context.Context
	client Client
	w      storage.EncodedWatch
	events []storage.EncodedEvent
}

// Stop implements traffic.Stream.
func (s *encodedStream) Stop() { s.w.Close() }

// Next implements traffic.Stream.
func (s *encodedStream) Next() (history.EventType, history.Object, error) {
	for len(s.events) == 0 {
		var err error
		if s.events, err = s.w.Next(s.ctx); err != nil {
			return "", history.Object{}, err
		}
	}
	e := s.events[0]
	s.events = s.events[1:]
	cm, err := s.client.decode(e.Object)
	if err != nil {
		return "", history.Object{}, err
	}
	return traffic.EventOf(e.Type, cm)
}

// Classify implements traffic.Client.
func (c Client) Classify(err error) (history.Outcome, string) {
	switch {
	case apistorage.IsNotFound(err):
		return history.Failed, history.NotFound
	case apistorage.IsExist(err):
		return history.Failed, history.AlreadyExists
	case apistorage.IsConflict(err), apistorage.IsInvalidObj(err):
		return history.Failed, history.Conflict
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return history.Failed, history.Expired
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return history.Unknown, "no answer in time"
	}
	if _, retries := apierrors.SuggestsClientDelay(err); retries || status.Status().Code/100 == 4 {
		return history.Failed, string(status.Status().Reason)
	}
	return history.Unknown, string(status.Status().Reason)
}
