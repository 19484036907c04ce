package checkpoint

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"

	"titan/libtitan/dtype"
	"titan/libtitan/model/llama3"
)

// OpenModel opens a checkpoint of any format for a run of a model. Tensors of Hugging Face's form are read under our
// names and in our order of rows; theirs tells that they are. A config.json beside them must say what model says.
func OpenModel(path string, model llama3.Config, note func(string)) (src Source, theirs bool, err error) {
	if src, err = OpenSource(path); err != nil {
		return nil, false, err
	}
	v := newView(src)
	if !v.namedByHF() {
		return src, false, nil
	}
	said, err := readConfig(path)
	if err == nil && said != nil {
		err = v.sameModel(*said, model)
	}
	if err == nil {
		err = v.fromHuggingFace(&model, &MoveOptions{Note: note})
	}
	if err == nil {
		err = v.seal()
	}
	if err != nil {
		src.Close()
		return nil, false, err
	}
	return v, true, nil
}

// sameModel refuses dimensions that tensors of the same shapes leave open, and would compute other numbers with.
func (v *view) sameModel(said, want llama3.Config) error {
	want.MaxSeqLen = said.MaxSeqLen // the longest row changes no number
	var why []string
	a, b := reflect.ValueOf(said), reflect.ValueOf(want)
	for i := range a.NumField() {
		if x, y := a.Field(i), b.Field(i); !reflect.DeepEqual(x.Interface(), y.Interface()) {
			name, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("json"), ",")
			why = append(why, fmt.Sprintf("%s is %+v there and %+v in the manifest", name, plain(x), plain(y)))
		}
	}
	if why == nil {
		return nil
	}
	return v.errorf("its config.json is of another model: %s: plan this one with meshplan --model %s", strings.Join(why, "; "), shellWord(filepath.Join(v.Name(), configFile)))
}

// plain is a field's value for an error.
func plain(x reflect.Value) any {
	if x.Kind() == reflect.Pointer && !x.IsNil() {
		x = x.Elem()
	}
	return x.Interface()
}

// FloatType is the dtype of a model's embedding in a checkpoint of Hugging Face's form; Invalid where path holds none.
func FloatType(path string) dtype.DType {
	src, err := OpenSource(path)
	if err != nil {
		return dtype.Invalid
	}
	defer src.Close()
	for _, it := range src.Items() {
		if it.FQN == "model.embed_tokens.weight" {
			return it.DType
		}
	}
	return dtype.Invalid
}
