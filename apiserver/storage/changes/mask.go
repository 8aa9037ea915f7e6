package changes

import (
	"iter"
	"maps"
	"reflect"

	corev1 "k8s.io/api/core/v1"
)

// The texts in place of the values of Secrets are those of "kubectl diff".
const (
	masked       = "***"
	maskedBefore = "*** (before)"
	maskedAfter  = "*** (after)"
)

// CompareMasked is Compare with the values of a Secret masked.
func CompareMasked(group, resource string, before, after []byte) iter.Seq[*Difference] {
	if IsSecret(group, resource) {
		from, _ := Decode(before).(map[string]any)
		to, _ := Decode(after).(map[string]any)
		from, to = MaskSecret(from, to)
		before, after = Encode(from), Encode(to)
	}
	return Compare(before, after)
}

// IsSecret reports whether the objects of a resource are Secrets, whose values are masked where changes are shown.
func IsSecret(group, resource string) bool { return group == "" && resource == "secrets" }

// MaskSecret returns two versions of a Secret with masked values, as "kubectl diff" does: it shows which ones differ.
// The annotation of "kubectl apply", which has them too, is masked as one value. A nil version stays nil, and what
// the caller passes is not changed.
func MaskSecret(before, after map[string]any) (maskedFrom, maskedTo map[string]any) {
	before, after = maps.Clone(before), maps.Clone(after)
	for _, field := range []string{"data", "stringData"} {
		maskValues(cloneField(before, field), cloneField(after, field), func(string) bool { return true })
	}
	maskValues(cloneField(cloneField(before, "metadata"), "annotations"), cloneField(cloneField(after, "metadata"), "annotations"),
		func(name string) bool { return name == corev1.LastAppliedConfigAnnotation })
	return before, after
}

// cloneField replaces an object in a field by its copy, which it returns; nil if there is none.
func cloneField(object map[string]any, name string) map[string]any {
	field, isObject := object[name].(map[string]any)
	if !isObject {
		return nil
	}
	field = maps.Clone(field)
	object[name] = field
	return field
}

func maskValues(before, after map[string]any, isSecret func(name string) bool) {
	names := maps.Clone(before)
	if names == nil {
		names = map[string]any{}
	}
	maps.Copy(names, after)
	for name := range names {
		if !isSecret(name) {
			continue
		}
		from, wasThere := before[name]
		to, isThere := after[name]
		textBefore, textAfter := masked, masked
		if wasThere && isThere && !reflect.DeepEqual(from, to) {
			textBefore, textAfter = maskedBefore, maskedAfter
		}
		if wasThere {
			before[name] = textBefore
		}
		if isThere {
			after[name] = textAfter
		}
	}
}
