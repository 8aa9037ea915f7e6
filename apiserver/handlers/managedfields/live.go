package managedfields

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Live stands for the object before a create: an empty object with a UID. Upstream's
// field manager computes nothing for it, because an object that has a UID and no
// managed fields counts as one whose fields are not tracked. Where the request has
// managed fields, upstream's field manager does compute, with the object that Unwrapper
// converts.
type Live struct {
	runtime.Object
	meta metav1.ObjectMeta
	// isUsed is true after upstream has computed the managed fields.
	isUsed bool
}

// NewLive returns a Live in place of an empty object.
func NewLive(empty runtime.Object) *Live {
	return &Live{Object: empty, meta: metav1.ObjectMeta{UID: "not tracked"}}
}

// GetObjectMeta returns the metadata that upstream reads the UID from.
func (l *Live) GetObjectMeta() metav1.Object { return &l.meta }

// IsUsed reports whether upstream has computed the managed fields. The caller then must
// not compute them again.
func (l *Live) IsUsed() bool { return l.isUsed }

// Unwrapper is an object converter that converts the empty object of a Live in its
// place.
type Unwrapper struct{ runtime.ObjectConvertor }

// ConvertToVersion converts an object, or the empty object of a Live.
func (u Unwrapper) ConvertToVersion(object runtime.Object, to runtime.GroupVersioner) (runtime.Object, error) {
	if live, ok := object.(*Live); ok {
		live.isUsed = true
		object = live.Object
	}
	return u.ObjectConvertor.ConvertToVersion(object, to)
}
