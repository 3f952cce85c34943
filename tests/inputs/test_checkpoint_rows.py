"""Checkpoints as the libraries themselves write them, one for each kind that people have."""

from __future__ import annotations

import argparse
import json
import shutil
import warnings
from pathlib import Path

import hostile_pickles as by_hand
import pytest
import timm
import torch
import transformers
from hostile import TINY, tiny_state
from safetensors.torch import save_file
from torch import nn

from clcurv.errors import CorruptFileError, NotWeightsError, UnsafeFileError
from clcurv.inputs.architecture import load_model
from clcurv.inputs.checkpoint import load_weights

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        made: nn.Module = timm.create_model(TINY, num_classes=3).eval()
    return made


@torch.no_grad()
def same(path: Path, model: nn.Module, *, key: str | None = None) -> None:
    """The checkpoint gives the network that was saved: its outputs, all its tensors."""
    loaded = load_model(path, key=key)
    assert loaded.matched_fraction == 1.0
    assert loaded.missing == ()
    assert torch.equal(loaded.model(IMAGES), model.float()(IMAGES))


# --- timm ------------------------------------------------------------------------------------


def test_what_timm_s_training_script_writes(model: nn.Module, tmp_path: Path) -> None:
    from timm.utils import CheckpointSaver, ModelEmaV3

    optimizer = torch.optim.AdamW(model.parameters())
    ema = ModelEmaV3(model, decay=0.5)
    (tmp_path / "recovery").mkdir()
    saver = CheckpointSaver(
        model,
        optimizer,
        args=argparse.Namespace(model=TINY, lr=0.1, output=tmp_path),
        model_ema=ema,
        checkpoint_dir=str(tmp_path),
        recovery_dir=str(tmp_path / "recovery"),
    )
    model(IMAGES).sum().backward()
    optimizer.step()
    saver.save_checkpoint(epoch=2, metric=71.5)
    weights = load_weights(tmp_path / "last.pth.tar")
    assert weights.key == "state_dict"
    assert weights.other_keys == ("state_dict_ema",)
    assert any("state_dict_ema" in note for note in weights.notes)
    assert (weights.metadata["arch"], weights.metadata["metric"]) == (TINY, 71.5)
    assert weights.metadata["args"]["output"] == str(tmp_path)
    same(tmp_path / "last.pth.tar", model)
    same(tmp_path / "last.pth.tar", ema.module, key="state_dict_ema")


def test_timm_s_folder_for_the_hub(model: nn.Module, tmp_path: Path) -> None:
    from timm.models import save_for_hf

    save_for_hf(model, str(tmp_path))
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    assert load_weights(tmp_path).format == "timm-folder"
    same(tmp_path, theirs)


# --- torch -----------------------------------------------------------------------------------


def test_wrappers_of_torch(model: nn.Module, tmp_path: Path) -> None:
    wrapped = {
        "module.": nn.DataParallel(model),
        "_orig_mod.": torch.compile(model),
        "module._orig_mod.": nn.DataParallel(torch.compile(model)),
    }
    for prefix, wrapper in wrapped.items():
        torch.save(wrapper.state_dict(), tmp_path / "x.pt")
        assert load_weights(tmp_path / "x.pt").prefix == prefix
        same(tmp_path / "x.pt", model)


def test_averaged_models(model: nn.Module, tmp_path: Path) -> None:
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    torch.save(average.state_dict(), tmp_path / "x.pt")
    same(tmp_path / "x.pt", model)
    assert any("averaged weights (of 1" in note for note in load_weights(tmp_path / "x.pt").notes)


def test_parameters_instead_of_a_state_dict(tmp_path: Path) -> None:
    layer = nn.Linear(3, 2)
    torch.save(dict(layer.named_parameters()), tmp_path / "x.pt")
    weights = load_weights(tmp_path / "x.pt")
    assert torch.equal(weights.tensors["weight"], layer.weight)
    assert not weights.tensors["weight"].requires_grad


@pytest.mark.parametrize("legacy", [False, True])
def test_weights_saved_on_a_gpu(legacy: bool, tmp_path: Path) -> None:
    stored = by_hand.storage(by_hand.number(4), view=b"N" if legacy else b"")
    stored = stored.replace(by_hand.text("cpu"), by_hand.text("cuda:1"))
    pickled = by_hand.mapping(w=by_hand.tensor(stored, (2, 2), (2, 1)))
    path = (by_hand.legacy if legacy else by_hand.zipped)(tmp_path / "x.pt", pickled)
    assert torch.equal(load_weights(path).tensors["w"], torch.zeros(2, 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_cast_and_said(
    dtype: torch.dtype, model: nn.Module, tmp_path: Path
) -> None:
    torch.save({"arch": TINY, "state_dict": model.to(dtype).state_dict()}, tmp_path / "x.pt")
    loaded = load_model(tmp_path / "x.pt")
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    assert any(str(dtype).removeprefix("torch.") in note for note in loaded.notes)
    same(tmp_path / "x.pt", model)


def test_8_bit_floats_have_no_gradients(tmp_path: Path) -> None:
    torch.save({"l.weight": torch.ones(2, 2).to(torch.float8_e4m3fn)}, tmp_path / "x.pt")
    with pytest.raises(NotWeightsError, match="quantised"):
        load_weights(tmp_path / "x.pt")


def test_a_distributed_checkpoint_and_the_way_out(model: nn.Module, tmp_path: Path) -> None:
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    folder = tmp_path / "dcp"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(model.state_dict(), checkpoint_id=folder)
        with pytest.raises(NotWeightsError, match="DCP") as caught:
            load_weights(folder)
        dcp_to_torch_save(folder, tmp_path / "model.pt")  # what the hint's command calls
    assert "format_utils dcp_to_torch" in str(caught.value.hint)
    same(tmp_path / "model.pt", model)


# --- pickled modules -------------------------------------------------------------------------


def test_a_whole_module_and_the_two_lines_of_its_hint(model: nn.Module, tmp_path: Path) -> None:
    torch.save(model, tmp_path / "whole.pt")
    with pytest.raises(UnsafeFileError, match="pickled Python objects"):
        load_weights(tmp_path / "whole.pt")
    again = torch.load(tmp_path / "whole.pt", weights_only=False)
    torch.save(again.state_dict(), tmp_path / "weights.pt")
    same(tmp_path / "weights.pt", model)


@pytest.mark.parametrize("key", ["", "model"])
def test_unsafe_pickle_opens_them_and_says_so(key: str, model: nn.Module, tmp_path: Path) -> None:
    torch.save({key: model, "epoch": 3} if key else model, tmp_path / "whole.pt")
    weights = load_weights(tmp_path / "whole.pt", unsafe_pickle=True)
    assert weights.module is not None
    assert weights.key == (key or None)
    assert weights.notes[0].startswith("UNSAFE: whole.pt was unpickled")
    state = model.state_dict()
    assert weights.tensors.keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in weights.tensors.items())


def test_unsafe_pickle_is_not_used_where_it_is_not_needed(tmp_path: Path) -> None:
    torch.save(tiny_state(), tmp_path / "x.pt")
    weights = load_weights(tmp_path / "x.pt", unsafe_pickle=True)
    assert weights.module is None
    assert not any("UNSAFE" in note for note in weights.notes)


def test_unsafe_pickle_reads_plain_pickles(tmp_path: Path) -> None:
    import pickle

    state = tiny_state()
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(state))
    with pytest.raises(NotWeightsError, match="plain pickle") as caught:
        load_weights(tmp_path / "x.pkl")
    assert "--unsafe-pickle" in str(caught.value.hint)
    assert load_weights(tmp_path / "x.pkl", unsafe_pickle=True).tensors.keys() == state.keys()


def test_unsafe_pickle_without_the_code(tmp_path: Path) -> None:
    path = by_hand.zipped(tmp_path / "x.pt", by_hand.call("no_such_package.nets", "Net"))
    with pytest.raises(NotWeightsError, match="needs code that is not there") as caught:
        load_weights(path, unsafe_pickle=True)
    assert "install" in str(caught.value.hint)


# --- Lightning -------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_what_lightning_writes(tmp_path: Path) -> None:
    lightning = pytest.importorskip("pytorch_lightning")
    metrics = pytest.importorskip("torchmetrics")

    class Net(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, lr: float = 0.1, root: Path = tmp_path) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.model = timm.create_model(TINY, num_classes=3)
            self.accuracy = metrics.MeanMetric()

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
            self.accuracy(loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    net = Net()
    rows = torch.utils.data.TensorDataset(IMAGES, torch.tensor([0, 2]))
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(net, torch.utils.data.DataLoader(rows, batch_size=2))
    written = [trainer.checkpoint_callback.best_model_path]
    trainer.save_checkpoint(tmp_path / "by_hand.ckpt")
    for path in (*map(Path, written), tmp_path / "by_hand.ckpt"):
        weights = load_weights(path)
        assert (weights.key, weights.prefix) == ("state_dict", "model.")
        assert weights.metadata["hyper_parameters"] == {"lr": 0.1, "root": str(tmp_path)}
        assert "pytorch-lightning_version" in weights.metadata
        same(path, net.model.eval())


# --- Hugging Face ----------------------------------------------------------------------------


def tiny_bert(folder: Path, **options: object) -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=3,
    )
    model: nn.Module = transformers.BertForSequenceClassification(config).eval()
    model.save_pretrained(folder, **options)
    return model


def test_shards_of_a_hugging_face_folder(tmp_path: Path) -> None:
    bert = tiny_bert(tmp_path, max_shard_size="20KB")
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 1
    weights = load_weights(tmp_path)
    assert weights.format == "hf-folder"
    assert weights.tensors.keys() == bert.state_dict().keys()
    words = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        ours, theirs = load_model(tmp_path).model(words).logits, bert(words).logits
    assert torch.allclose(ours, theirs, atol=1e-6)
    # A shard of another version lacks what the index promises: transformers only warns.
    save_file({"another": torch.zeros(1)}, shards[1], metadata={"format": "pt"})
    with pytest.raises(CorruptFileError, match="tensors that its index names"):
        load_weights(tmp_path)
    shards[1].unlink()
    with pytest.raises(CorruptFileError, match=f"lacks the shard '{shards[1].name}'"):
        load_weights(tmp_path)


def test_what_lies_beside_a_hugging_face_model_is_not_opened(tmp_path: Path) -> None:
    """A Trainer's folder: its training_args.bin and optimizer.pt are pickles."""
    bert = tiny_bert(tmp_path)
    torch.save(argparse.Namespace(x=by_hand.sound), tmp_path / "training_args.bin")
    (tmp_path / "optimizer.pt").write_bytes(b"no pickle at all")
    assert load_weights(tmp_path).tensors.keys() == bert.state_dict().keys()


def test_a_quantised_folder(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(NotWeightsError, match="quantised"):
        load_weights(tmp_path)


def test_links_into_a_cache_are_followed(tmp_path: Path) -> None:
    """The Hub's cache keeps files once and links to them."""
    bert = tiny_bert(tmp_path / "plain")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    for file in (tmp_path / "plain").iterdir():
        shutil.move(file, tmp_path / "blobs" / file.name)
        (tmp_path / "snapshot" / file.name).symlink_to(Path("../blobs") / file.name)
    assert load_weights(tmp_path / "snapshot").tensors.keys() == bert.state_dict().keys()
