"""What a program says wrongly to `fuse`, `launch` or the torch backend is one line, where it says it."""

import pytest

import fusiond.cuda
from fusiond.service.frameworks import region_answers

WRONG = {
    "a key that no job has": ({"budget": 4}, None, r"^search: unknown key 'budget'.*trials"),
    "a wrong value": ({"trials": 0}, None, "^search: .*it must be from 1 to"),
    "what no file can say": ({"trials": {4}}, None, "^search: cannot be written into a job: .*set"),
    "no device": (None, "gpu 0", "^device: 'gpu 0' is not a device"),
}


@pytest.mark.parametrize(("search", "device", "said"), WRONG.values(), ids=WRONG)
def test_wrong_options_are_one_line(search, device, said):
    with pytest.raises(ValueError, match=said) as caught:
        region_answers.check_options(search, device)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=said):
        fusiond.cuda.launch(search=search, device=device)


def test_right_options_pass():
    region_answers.check_options({"trials": 20, "timeout": "10m", "order": "paper", "patience": "none"}, "cuda:1")
