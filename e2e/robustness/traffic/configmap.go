package traffic

import (
	"context"
	"fmt"
	"io"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"byre/e2e/robustness/history"
)

// The members of a ConfigMap that hold an object's value (in its data) and its color (in
// its labels).
const (
	ValueKey = "value"
	ColorKey = "color"
)

// ConfigMapOf returns the ConfigMap that clients write for an object, without its
// resourceVersion.
func ConfigMapOf(o history.Object) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: o.Name, Labels: map[string]string{ColorKey: o.Color}},
		Data:       map[string]string{ValueKey: o.Value},
	}
}

// ObjectOf returns the object that a ConfigMap is of.
func ObjectOf(cm *corev1.ConfigMap) (history.Object, error) {
	revision, err := strconv.ParseInt(cm.ResourceVersion, 10, 64)
	return history.Object{Name: cm.Name, Revision: revision, Value: cm.Data[ValueKey], Color: cm.Labels[ColorKey]}, err
}

// PageOf returns the objects of a list.
func PageOf(list *corev1.ConfigMapList) (Page, error) {
	revision, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
	if err != nil {
		return Page{}, err
	}
	page := Page{Revision: revision, Continue: list.Continue}
	for i := range list.Items {
		o, err := ObjectOf(&list.Items[i])
		if err != nil {
			return Page{}, err
		}
		page.Items = append(page.Items, o)
	}
	return page, nil
}

// VersionOf returns how a list asks for the revision that o wants; both results are empty
// for the latest.
func VersionOf(o ListOptions) (resourceVersion string, match metav1.ResourceVersionMatch) {
	switch o.Mode {
	case history.Any:
		return "0", metav1.ResourceVersionMatchNotOlderThan
	case history.NotOlderThan:
		return strconv.FormatInt(o.At, 10), metav1.ResourceVersionMatchNotOlderThan
	case history.Exact:
		return strconv.FormatInt(o.At, 10), metav1.ResourceVersionMatchExact
	}
	return "", ""
}

// EventOf returns the event of a watch of ConfigMaps.
func EventOf(kind watch.EventType, o runtime.Object) (history.EventType, history.Object, error) {
	if kind == watch.Error {
		return "", history.Object{}, apierrors.FromObject(o)
	}
	cm, ok := o.(*corev1.ConfigMap)
	if !ok {
		return "", history.Object{}, fmt.Errorf("event of a %T", o)
	}
	seen, err := ObjectOf(cm)
	if kind == watch.Bookmark && cm.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
		return history.InitialEnd, seen, err
	}
	return history.EventType(kind), seen, err
}

// NewStream returns the Stream of a watch of ConfigMaps, which ends when ctx does.
func NewStream(ctx context.Context, w watch.Interface) Stream { return stream{ctx, w} }

type stream struct {
	ctx context.Context
	w   watch.Interface
}

// Stop implements Stream.
func (s stream) Stop() { s.w.Stop() }

// Next implements Stream.
func (s stream) Next() (history.EventType, history.Object, error) {
	select {
	case <-s.ctx.Done():
		return "", history.Object{}, s.ctx.Err()
	case event, open := <-s.w.ResultChan():
		if !open {
			return "", history.Object{}, io.EOF
		}
		return EventOf(event.Type, event.Object)
	}
}
