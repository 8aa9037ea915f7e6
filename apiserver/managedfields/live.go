package managedfields

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Live is what upstream's field manager is told that a created object was before: an
// empty object with a UID. It takes an object that has a UID and no managed fields for
// one whose fields nobody tracks, and computes none. Where the request brings managed
// fields it computes, with what Unwrap returns.
type Live struct {
	runtime.Object
	meta metav1.ObjectMeta
	// isUsed says that upstream has computed the managed fields.
	isUsed bool
}

// NewLive returns a Live in place of an empty object.
func NewLive(empty runtime.Object) *Live {
	return &Live{Object: empty, meta: metav1.ObjectMeta{UID: "not tracked"}}
}

// GetObjectMeta is what upstream reads the UID from.
func (l *Live) GetObjectMeta() metav1.Object { return &l.meta }

// IsUsed reports whether upstream has computed the managed fields: nobody else is to.
func (l *Live) IsUsed() bool { return l.isUsed }

// Unwrapper converts a Live as the empty object in whose place it stands.
type Unwrapper struct{ runtime.ObjectConvertor }

// ConvertToVersion converts an object, or the empty object of a Live.
func (u Unwrapper) ConvertToVersion(object runtime.Object, to runtime.GroupVersioner) (runtime.Object, error) {
	if live, ok := object.(*Live); ok {
		live.isUsed = true
		object = live.Object
	}
	return u.ObjectConvertor.ConvertToVersion(object, to)
}
